package nccl

import (
	"errors"
	"runtime"
	"slices"

	"symmem/driver"
	"symmem/internal/cuda"
)

// hold is what a graph of another library has of a group, from the first call that is put into the
// capture until nothing is left of the graph: its group's exchange memory, report, kernels and
// communicator, and the windows and segments that its calls use. Where the driver does not say that
// a graph has ended, the hold ends with the device.
type hold struct {
	c *communicator
	// capture is CUDA's number of the capture.
	capture uint64
	used    []*keeper // each once; guarded by Device.holding
}

// keeper keeps something as long as holds use it. The zero value is ready.
type keeper struct {
	users int // guarded by Device.holding
	// due is what was put off until nobody uses it, which itself uses upon, or nil; guarded by
	// Device.holding.
	due  func()
	upon *keeper
}

// holdFor returns the hold of the capture that a stream is in, which is made at the first call, or
// nil without an active capture. s.mu and c.mu are held. It is called on a thread of the device.
func (c *communicator) holdFor(s *stream) (*hold, error) {
	d := c.device
	capture, err := d.cuda.CaptureInfo(s.handle)
	if err != nil || capture.Graph == 0 {
		return nil, err
	}
	d.holding.Lock()
	h := c.captures[capture.ID]
	d.holding.Unlock()
	if h == nil {
		h = &hold{c: c, capture: capture.ID}
		err = h.begin(capture.Graph)
	}
	return h, err
}

// begin has the hold last as long as the graph.
func (h *hold) begin(graph cuda.Graph) error {
	c, d := h.c, h.c.device
	d.holding.Lock()
	if c.captures == nil {
		c.captures = map[uint64]*hold{}
	}
	c.captures[h.capture] = h
	c.held.Add(1)
	d.holding.Unlock()
	err := d.cuda.AtGraphEnd(graph, h.end)
	if missing := (*cuda.MissingError)(nil); errors.As(err, &missing) {
		d.holding.Lock()
		d.endless = append(d.endless, h)
		d.holding.Unlock()
		return nil
	}
	if err != nil {
		h.end()
	}
	return err
}

// end drops what the hold uses. It is called on a thread of CUDA's, which must not call CUDA: what
// is due now is left to a goroutine.
func (h *hold) end() {
	d := h.c.device
	d.holding.Lock()
	delete(h.c.captures, h.capture)
	idle := slices.DeleteFunc(h.used, func(k *keeper) bool {
		k.users--
		return k.users > 0 || k.due == nil
	})
	d.holding.Unlock()
	if len(idle) == 0 {
		h.c.held.Done()
		return
	}
	go func() {
		defer h.c.held.Done()
		for _, k := range idle {
			d.settle(k)
		}
	}()
}

// settle does what was put off, if nobody uses the thing still.
func (d *Device) settle(k *keeper) {
	for k != nil {
		d.holding.Lock()
		due := k.due
		if k.users > 0 || due == nil {
			d.holding.Unlock()
			return
		}
		k.due = nil
		d.holding.Unlock()
		due()
		if k = k.upon; k != nil {
			d.holding.Lock()
			k.users--
			d.holding.Unlock()
		}
	}
}

// putOff has something done once no hold uses k, and keeps upon until then, unless it is nil. It
// reports false where nobody uses k: then the caller does it. What was put off before stays.
func (d *Device) putOff(k, upon *keeper, due func()) bool {
	d.holding.Lock()
	defer d.holding.Unlock()
	if k.users == 0 {
		return false
	}
	if k.due == nil {
		k.due, k.upon = due, upon
		if upon != nil {
			upon.users++
		}
	}
	return true
}

// inUse reports whether holds use something.
func (d *Device) inUse(k *keeper) bool {
	d.holding.Lock()
	defer d.holding.Unlock()
	return k.users > 0
}

// holdsCapture reports whether a capture with CUDA's number, or its graph, has calls of the group.
func (c *communicator) holdsCapture(id uint64) bool {
	c.device.holding.Lock()
	defer c.device.holding.Unlock()
	return c.captures[id] != nil
}

// holding reports whether graphs of other libraries hold work of the communicator.
func (c *communicator) holding() bool {
	c.device.holding.Lock()
	defer c.device.holding.Unlock()
	return len(c.captures) > 0
}

// use keeps what a call touches. c.mu is held.
func (h *hold) use(p *plan) {
	d := h.c.device
	var used []*keeper
	for _, in := range []driver.Window{p.SendWindow, p.RecvWindow} {
		if w, ok := in.(*window); ok && w != nil {
			used = append(used, &w.keeper)
		}
	}
	at := []uintptr{p.Send, p.Recv}
	if p.Norm != nil {
		at = append(at, p.Norm.Residual, p.Norm.Weight)
	}
	for _, address := range at {
		if s := d.segmentAt(address); s != nil {
			used = append(used, &s.keeper)
		}
	}
	d.holding.Lock()
	defer d.holding.Unlock()
	for _, k := range used {
		if !slices.Contains(h.used, k) {
			k.users++
			h.used = append(h.used, k)
		}
	}
}

// list lets segmentAt find a segment.
func (d *Device) list(s *segment) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.segments[s] = true
}

// unlist takes a segment off the device's list.
func (d *Device) unlist(s *segment) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.segments, s)
}

// segmentAt finds the segment that an address lies in, or nil.
func (d *Device) segmentAt(address uintptr) *segment {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.segments {
		if address-s.Address() < uintptr(s.bytes) {
			return s
		}
	}
	return nil
}

// endHolds ends the holds of which the driver does not say when their graphs end.
func (d *Device) endHolds() {
	d.holding.Lock()
	endless := d.endless
	d.endless = nil
	d.holding.Unlock()
	for _, h := range endless {
		h.end()
	}
}

// keepRecorded has what a call uses live as long as the graph that it is put into. s.mu and c.mu
// are held.
func (c *communicator) keepRecorded(p *plan, s *stream) error {
	h, err := c.holdFor(s)
	if h == nil || err != nil {
		return err
	}
	h.use(p)
	if p.kernel == nil && !p.nothing() && len(c.cfg.Ranks) > 1 {
		c.recorded.plain = c.recorded.plain || p.Path != driver.PathWindow
		c.recorded.windows = c.recorded.windows || p.Path == driver.PathWindow
	}
	return nil
}

// keepInCapture keeps a point as long as the graph of the owner's capture. s.mu is held.
func (s *stream) keepInCapture(p *point) error {
	gpu := s.device.cuda
	capture, err := gpu.CaptureInfo(s.handle)
	if err != nil || capture.Graph == 0 {
		return err
	}
	err = gpu.AtGraphEnd(capture.Graph, func() { runtime.KeepAlive(p) })
	if missing := (*cuda.MissingError)(nil); errors.As(err, &missing) {
		s.device.keep(p)
		return nil
	}
	return err
}

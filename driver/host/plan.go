package host

import (
	"fmt"

	"symmem/driver"
)

// plan is a call, first offered and then prepared.
type plan struct {
	driver.Call
	c *communicator
	// send and recv are the windows of the buffers on the window path.
	send, recv *window
	// size is that of an element; parts is how many parts of Count elements this rank
	// contributes, and bytes what that makes.
	size, parts, bytes int64
	// chunk is how many elements of each part go through staging in one step.
	chunk int64
	// windowed reports whether the call works in peers' windows and not through staging, oneShot
	// whether it is an all-reduce in which every rank reduces everything for itself.
	windowed, oneShot bool
	// yields reports whether its first barrier does not poll.
	yields bool
	pair   bool // a message
}

// errNoKernels is why nothing goes direct.
var errNoKernels = fmt.Errorf("the host backend has no kernels of a GPU: %w", driver.ErrUnsupported)

// Refusal refuses the direct path alone.
func (p *plan) Refusal(path driver.Path) error {
	if path == driver.PathDirect {
		return errNoKernels
	}
	return nil
}

// Prepared returns what was prepared.
func (p *plan) Prepared() *driver.Call { return &p.Call }

// Take chooses the algorithm of a path.
func (p *plan) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	p.SetPath(path, digest)
	p.size = int64(p.DataType.Size())
	if send, _ := p.Operation.Extents(); send == driver.AllParts {
		p.parts = int64(p.c.Size())
	}
	p.bytes = p.parts * p.Count * p.size
	var err error
	switch {
	case p.Splits != nil:
		err = p.resolveSplits()
	case path == driver.PathWindow:
		err = p.findWindows()
	}
	if err != nil {
		return nil, fmt.Errorf("preparing %v of %d %v: %w", p.Operation, p.Count, p.DataType, err)
	}
	p.chunk = max(1, stageBytes/(p.parts*p.size))
	p.yields = p.bytes > p.c.tuning.polled
	if path == driver.PathWindow && p.bytes > p.c.tuning.eager && !p.overwrites() {
		p.windowed = true
		p.oneShot = p.Operation == driver.AllReduce && p.bytes <= p.c.tuning.oneShot && p.Send != p.Recv
	}
	return p, nil
}

// overwrites reports whether a rank would overwrite what peers still read from its window.
func (p *plan) overwrites() bool {
	return p.Operation == driver.AllToAll && p.Send == p.Recv
}

// findWindows finds the windows that the call names.
func (p *plan) findWindows() error {
	var err error
	if p.send, err = p.own(p.SendWindow); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}
	if p.recv, err = p.own(p.RecvWindow); err != nil {
		return fmt.Errorf("receive buffer: %w", err)
	}
	return nil
}

// own is a window of the plan's group.
func (p *plan) own(w driver.Window) (*window, error) {
	own, ok := w.(*window)
	if !ok || own.c != p.c {
		return nil, fmt.Errorf("no window of group %s: %w", p.c.cfg.Name(), driver.ErrOutOfRange)
	}
	return own, nil
}

// resolveSplits finds the window in which the others read the send buffer.
func (p *plan) resolveSplits() error {
	p.bytes, _ = p.Spans(p.c.Size())
	if p.SendWindow == nil || p.bytes <= p.c.tuning.eager || p.Send == p.Recv {
		return nil
	}
	var err error
	if p.send, err = p.own(p.SendWindow); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}
	return nil
}

package nccl

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control/shm"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
	"symmem/internal/ranked"
	"symmem/internal/scatter"
)

// Device is one rank's GPU.
//
// States: open; closed. A capture in progress forbids registration on the whole device.
type Device struct {
	cfg  driver.Config
	cuda *cuda.Driver
	nccl *nccl.Library
	// anywhere are both libraries for single calls of any thread; else calls are made between enter
	// and leave.
	anywhere struct {
		cuda *cuda.Driver
		nccl *nccl.Library
	}
	gpu     cuda.Device
	context cuda.Context
	// retained tells that the device holds the GPU's primary context; ended that it was closed, and
	// holds it for arenas alone. Both are guarded by mu once others have the device.
	retained, ended bool
	info            driver.Info
	// major is the GPU's compute capability.
	major int
	prop  cuda.AllocationProp
	// noFabric says why prop asks for no fabric handles; empty if it does.
	noFabric string
	// reach lists the GPUs that get access to this one's memory: itself and its peers.
	reach []cuda.Device
	// machine joins the ranks of this machine, and hands them descriptors.
	machine *shm.Machine
	self    member
	scatter *scatter.Scatter
	// capturing counts the streams that record.
	capturing atomic.Int32
	// givenUp tells that a stream was closed whose work does not end. CUDA waits for that wherever
	// it gives memory back, so the device leaves its own to the end of the process.
	givenUp atomic.Bool
	// guests tells that streams of another library were adopted.
	guests atomic.Bool
	// order makes the order of streams one of Go's memory model: host functions read it before and
	// add to it after their work, and who learns that work is done reads it.
	order   atomic.Uint64
	events  eventPool
	aside   aside
	scratch scratch
	words   pinned[word]
	reports pinned[kernels.Report]
	// descriptors are those of receives.
	descriptors pinned[kernels.Message]
	// late counts the groups that have ended while streams had yet to come to messages of theirs.
	late atomic.Int32
	// collectives and copies are the kernels of the direct path and those of messages.
	collectives, copies code

	mu            ranked.Mutex[deviceMu]
	members       map[int]*member            // by world rank; guarded by mu
	arenas        []*arena                   // guarded by mu
	kept          int                        // open arenas that may outlive the device; guarded by mu
	segments      map[*segment]bool          // guarded by mu
	communicators map[*communicator]struct{} // open ones and those being torn down; guarded by mu
	graphs        map[*graph]struct{}        // open ones; guarded by mu
	points        []*point                   // of graphs of other libraries; guarded by mu
	closers       []func() error             // for the end of the device; guarded by mu

	holding ranked.Mutex[deviceHolding]
	endless []*hold // of which the driver does not say when they end; guarded by holding
}

// Info describes the device.
func (d *Device) Info() driver.Info { return d.info }

// Library says which NCCL the device uses.
func (d *Device) Library() string {
	_, text := d.nccl.Version()
	return "NCCL " + text
}

// choose finds the GPU of this rank among those that the process may see.
func (d *Device) choose() error {
	n, err := d.cuda.DeviceCount()
	if err != nil {
		return err
	}
	ordinal := d.cfg.Device - 1
	if ordinal < 0 {
		ordinal = d.cfg.LocalRank
		switch {
		case n == 1:
			// Launchers often show each rank its own GPU alone.
			ordinal = 0
		case sharing() && n > 0:
			ordinal %= n
		}
	}
	if ordinal >= n && d.cfg.Device > 0 {
		return fmt.Errorf("device %d: %w: the process sees %d GPUs (CUDA_VISIBLE_DEVICES)", ordinal,
			driver.ErrUnsupported, n)
	}
	if ordinal >= n {
		return fmt.Errorf("local rank %d: %w: the process sees %d GPUs; start fewer ranks on this "+
			"machine, show it more (CUDA_VISIBLE_DEVICES), or let ranks share GPUs (%s=1)",
			d.cfg.LocalRank, driver.ErrUnsupported, n, sharingVariable)
	}
	d.gpu, err = d.cuda.Device(ordinal)
	return err
}

// describe asks the GPU for what does not change.
func (d *Device) describe() error {
	name, err := d.gpu.Name()
	if err != nil {
		return err
	}
	if d.major, _, err = d.gpu.ComputeCapability(); err != nil {
		return err
	}
	if d.prop, err = d.properties(); err != nil {
		return err
	}
	granularity, err := d.granularity()
	if err != nil {
		return err
	}
	if d.reach, err = d.peersOfMemory(); err != nil {
		return err
	}
	d.info = driver.Info{Backend: "nccl", Name: name, Granularity: granularity}
	return nil
}

// properties are those of every segment: NCCL's own allocator asks for the same, so what it makes
// of a window works on ours. The context of the device must exist.
func (d *Device) properties() (cuda.AllocationProp, error) {
	vmm, err := d.gpu.Attribute(cuda.AttributeVMMSupported)
	if err != nil {
		return cuda.AllocationProp{}, err
	}
	if vmm == 0 {
		return cuda.AllocationProp{}, fmt.Errorf("the GPU has no virtual memory management: %w",
			driver.ErrUnsupported)
	}
	prop := cuda.PinnedMemory(d.gpu, cuda.HandlePosixFD, d.has(cuda.AttributeRDMAWithVMMSupported))
	with := prop
	with.RequestedHandles |= cuda.HandleFabric
	if err := d.do(func() error { return d.tryFabric(with) }); err != nil {
		d.noFabric = err.Error()
	} else {
		prop = with
	}
	return prop, nil
}

// tryFabric makes memory with a fabric handle. A GPU that knows them refuses them all the same to a
// process without an IMEX channel.
func (d *Device) tryFabric(prop cuda.AllocationProp) error {
	if !d.has(cuda.AttributeFabricSupported) {
		return errors.New("its GPU does not know them")
	}
	bytes, err := d.cuda.Granularity(prop, false)
	if err != nil {
		return err
	}
	handle, err := d.cuda.Create(bytes, prop)
	if errors.Is(err, cuda.ErrNotPermitted) {
		return fmt.Errorf("%w: does the process see an IMEX channel "+
			"(/dev/nvidia-caps-imex-channels/channel0)?", err)
	}
	if err == nil {
		d.release(handle)
	}
	return err
}

// has reports whether the GPU has what an attribute asks for. One that does not know it has not.
func (d *Device) has(attribute cuda.Attribute) bool {
	value, err := d.gpu.Attribute(attribute)
	return err == nil && value != 0
}

// minGranularity is what windows need: NCCL 2.27 wants multiples of 2 MiB.
const minGranularity = 2 << 20

func (d *Device) granularity() (int64, error) {
	g, err := d.cuda.Granularity(d.prop, true)
	return max(g, minGranularity), err
}

// peersOfMemory lists the GPUs in this process's view that can reach this one's memory. Ranks of
// one process read each other's memory in place; other processes map it anew.
func (d *Device) peersOfMemory() ([]cuda.Device, error) {
	n, err := d.cuda.DeviceCount()
	if err != nil {
		return nil, err
	}
	reach := []cuda.Device{d.gpu}
	for ordinal := range n {
		peer, err := d.cuda.Device(ordinal)
		if err != nil {
			return nil, err
		}
		if ordinal == d.gpu.Ordinal() {
			continue
		}
		if can, err := peer.CanAccessPeer(d.gpu); err == nil && can {
			reach = append(reach, peer)
		}
	}
	return reach, nil
}

// enter locks the goroutine to its thread and makes the device's context current there; leave ends
// that. CUDA calls are made in between. With another library, whose captures some calls of any
// thread would spoil, the thread is set to spoil none.
func (d *Device) enter() (visit, error) {
	runtime.LockOSThread()
	if err := d.cuda.SetCurrent(d.context); err != nil {
		runtime.UnlockOSThread()
		return visit{}, err
	}
	v := visit{guest: d.guests.Load()}
	if v.guest {
		var err error
		if v.mode, err = d.cuda.ThreadExchangeCaptureMode(cuda.CaptureRelaxed); err != nil {
			runtime.UnlockOSThread()
			return visit{}, err
		}
	}
	return v, nil
}

// visit is what a thread was set to before.
type visit struct {
	guest bool
	mode  cuda.CaptureMode
}

func (d *Device) leave(v visit) {
	if v.guest {
		_, _ = d.cuda.ThreadExchangeCaptureMode(v.mode) // it has just worked
	}
	runtime.UnlockOSThread()
}

// with makes CUDA calls, each of which may be on a thread of its own, for less than do takes.
func (d *Device) with(calls func(gpu *cuda.Driver) error) error {
	if !d.guests.Load() {
		return calls(d.anywhere.cuda)
	}
	return d.do(func() error { return calls(d.cuda) })
}

// do runs CUDA calls on a thread of the device.
func (d *Device) do(calls func() error) error {
	v, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave(v)
	return calls()
}

// Close gives everything back. Graphs that are still open end here, since communicators cannot end
// before the graphs that hold their work. What graphs of other libraries hold stays until they are
// gone, and with it the context.
func (d *Device) Close() error {
	var errs []error
	for _, g := range d.openGraphs() {
		errs = append(errs, g.Close())
	}
	d.endHolds()
	held, err := d.closeCommunicators()
	errs = append(errs, err)
	d.mu.Lock()
	closers := d.closers
	d.closers = nil
	d.mu.Unlock()
	for _, end := range closers {
		errs = append(errs, end())
	}
	if d.machine != nil {
		errs = append(errs, d.machine.Close())
		d.machine = nil
	}
	// What a stream uses that has yet to come past a message stays for as long as the process.
	carries := d.within(endingTime, func() (bool, error) { return d.late.Load() == 0, nil }) != nil
	d.mu.Lock()
	ends := d.retained && !d.ended && !stuck.Load() && !d.givenUp.Load() && !carries
	d.mu.Unlock()
	if !ends {
		return errors.Join(errs...)
	}
	if len(held) > 0 {
		go func() {
			for _, c := range held {
				<-c.tornDown
			}
			if !stuck.Load() {
				_ = d.end()
			}
		}()
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, d.end())...)
}

// closeCommunicators closes those that are open, and returns those that graphs of other libraries
// hold.
func (d *Device) closeCommunicators() (held []*communicator, err error) {
	var errs []error
	for _, c := range d.openCommunicators() {
		errs = append(errs, c.Close())
		ended := c.awaitEnd(c.left, stuck.Load())
		select {
		case <-c.tornDown:
			ended = c.tearing
		default:
			if ended == nil {
				held = append(held, c)
			}
		}
		if !stuck.Load() {
			errs = append(errs, ended)
		}
	}
	return held, errors.Join(errs...)
}

// end gives back what the device itself has, and then its context.
func (d *Device) end() error {
	errs := []error{d.do(func() error {
		return errors.Join(d.events.drain(d.cuda), d.aside.close(d.cuda), d.scratch.close(),
			d.words.close(d.cuda), d.reports.close(d.cuda), d.descriptors.close(d.cuda),
			d.collectives.unload(d), d.copies.unload(d))
	})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	return errors.Join(append(errs, d.releaseContext())...)
}

// releaseContext gives up the context of a device that was closed, once no arena needs it. d.mu is
// held.
func (d *Device) releaseContext() error {
	if !d.ended || !d.retained || d.kept > 0 {
		return nil
	}
	d.retained = false
	return d.gpu.ReleasePrimary()
}

// atClose has a function called when the device closes.
func (d *Device) atClose(end func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closers = append(d.closers, end)
}

// keep keeps a point as long as the device.
func (d *Device) keep(p *point) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.points = append(d.points, p)
}

func (d *Device) openGraphs() []*graph {
	d.mu.Lock()
	defer d.mu.Unlock()
	var open []*graph
	for g := range d.graphs {
		open = append(open, g)
	}
	return open
}

func (d *Device) openCommunicators() []*communicator {
	d.mu.Lock()
	defer d.mu.Unlock()
	var open []*communicator
	for c := range d.communicators {
		open = append(open, c)
	}
	return open
}

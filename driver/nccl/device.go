package nccl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control/shm"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
	"symmem/internal/ranked"
	"symmem/internal/scatter"
	"symmem/internal/sys"
)

// Device is one rank's GPU.
//
// States: open; closed. A capture in progress forbids registration on the whole device.
type Device struct {
	cfg  driver.Config
	nccl *nccl.Library
	// anyThread is the library for single calls from any thread. Calls in an NCCL group must all run
	// on one of the GPU's threads.
	anyThread *nccl.Library
	gpu       *gpu.GPU // nil until it is open
	info      driver.Info
	// machine joins the ranks of this machine, and hands them descriptors.
	machine  *shm.Machine
	exporter memory.Exporter
	self     member
	members  members
	memory   *memory.Memory
	streams  *stream.Streams
	scratch  memory.Scratch
	reports  gpu.Pinned[kernels.Report]
	// collectives are the kernels of the direct path.
	collectives gpu.Code
	messages    p2p.Device

	mu            ranked.Mutex[deviceMu]
	ended         bool                       // the device has given up its GPU; guarded by mu
	communicators map[*communicator]struct{} // open ones and those being torn down; guarded by mu
}

// open opens the GPU and the libraries.
func (d *Device) open(ctx context.Context) error {
	// This comes first, since ranks wait in it for rank 0, whose GPU may be the one that fails.
	var err error
	if d.machine, err = shm.Open(ctx, d.cfg); err != nil {
		return err
	}
	library, err := loadDriver()
	if err != nil {
		return withAdvice(err)
	}
	if d.nccl, err = nccl.Load(); err != nil {
		return withAdvice(err)
	}
	device, err := choose(library, &d.cfg)
	if err != nil {
		return err
	}
	if d.gpu, err = gpu.Open(library, device, d.cfg.Timeout); err != nil {
		return err
	}
	d.anyThread = d.nccl.After(d.gpu.Entry())
	d.info = driver.Info{Backend: "nccl", Name: d.gpu.Model, Granularity: d.gpu.Granularity}
	d.exporter = memory.Exporter{GPU: d.gpu, Machine: d.machine}
	d.memory = memory.New(d.gpu, scatter.New(d.cfg.Scatter, d.cfg.Rank, d.gpu.Granularity))
	d.streams = &stream.Streams{
		GPU: d.gpu, Groups: d.groups, NewCalls: func() stream.Calls { return newCalls(d.gpu) },
	}
	d.messages.GPU, d.messages.Streams, d.messages.Exporter = d.gpu, d.streams, &d.exporter
	d.messages.Copies.Object = kernels.MessageObject
	return d.publishMember(ctx)
}

// publishMember publishes what the other ranks need to know of this one.
func (d *Device) publishMember(ctx context.Context) error {
	boot, err := sys.BootID()
	if err != nil {
		return err
	}
	machine, err := machineOf(d.cfg.Rank, boot)
	if err != nil {
		return err
	}
	uuid, err := d.gpu.UUID()
	if err != nil {
		return err
	}
	code, _ := d.nccl.Version()
	d.self = member{
		Machine: machine, Boot: boot, GPU: uuid, Process: process, Name: d.info.Name, NCCL: code,
		NoFabric: d.gpu.NoFabric,
	}
	// Now, since CUDA may wait for streams to load a kernel, which may wait for messages.
	if err := d.gpu.Do(func() error { return d.messages.Copies.Load(d.gpu) }); err != nil {
		d.self.NoKernels = err.Error()
	}
	return d.publish(ctx, &d.self)
}

// publish stores the member of this rank for the others.
func (d *Device) publish(ctx context.Context, m *member) error {
	value, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return d.cfg.Store.Set(ctx, memberKey(d.cfg.Rank), value)
}

// Info describes the device.
func (d *Device) Info() driver.Info { return d.info }

// Ordinal is the number of the GPU among those that the process sees.
func (d *Device) Ordinal() int { return d.gpu.Ordinal() }

// Library says which NCCL the device uses.
func (d *Device) Library() string {
	_, text := d.nccl.Version()
	return "NCCL " + text
}

// NewArena reserves addresses.
func (d *Device) NewArena(bytes int64) (driver.Arena, error) { return d.memory.NewArena(bytes) }

// NewStream makes a stream.
func (d *Device) NewStream() (driver.Stream, error) {
	s, err := d.streams.NewStream()
	if err != nil {
		return nil, err
	}
	return s, nil
}

// AdoptStream makes a stream of one that another library has made.
func (d *Device) AdoptStream(handle uintptr) (driver.AdoptedStream, error) {
	s, err := d.streams.Adopt(handle)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewEvent makes an event.
func (d *Device) NewEvent() (driver.Event, error) { return d.streams.NewEvent(), nil }

// choose finds the GPU of this rank among those that the process may see.
func choose(library *cuda.Driver, cfg *driver.Config) (cuda.Device, error) {
	n, err := library.DeviceCount()
	if err != nil {
		return cuda.Device{}, err
	}
	ordinal := cfg.Device - 1
	if ordinal < 0 {
		ordinal = cfg.LocalRank
		switch {
		case n == 1:
			// Launchers often show each rank its own GPU alone.
			ordinal = 0
		case sharing() && n > 0:
			ordinal %= n
		}
	}
	if ordinal >= n && cfg.Device > 0 {
		return cuda.Device{}, fmt.Errorf("device %d: %w: the process sees %d GPUs "+
			"(CUDA_VISIBLE_DEVICES)", ordinal, driver.ErrUnsupported, n)
	}
	if ordinal >= n {
		return cuda.Device{}, fmt.Errorf("local rank %d: %w: the process sees %d GPUs; start fewer "+
			"ranks on this machine, show it more (CUDA_VISIBLE_DEVICES), or let ranks share GPUs (%s=1)",
			cfg.LocalRank, driver.ErrUnsupported, n, sharingVariable)
	}
	return library.Device(ordinal)
}

// Close gives everything back. Graphs that are still open end here, since communicators cannot end
// before the graphs that hold their work. What graphs of other libraries hold stays until they are
// gone, and with it the context.
func (d *Device) Close() error {
	if d.gpu == nil {
		return d.leaveMachine()
	}
	errs := []error{d.streams.CloseGraphs()}
	d.memory.UseCounts.End()
	held, err := d.closeCommunicators()
	errs = append(errs, err)
	for _, end := range d.messages.Closers() {
		errs = append(errs, end())
	}
	errs = append(errs, d.leaveMachine())
	// What a stream uses that has yet to come past a message stays for as long as the process.
	past := func() (bool, error) { return d.messages.Late.Load() == 0, nil }
	carries := gpu.Within(gpu.EndingTime, past) != nil
	reclaimed, err := d.gpu.Reclaim()
	errs = append(errs, err)
	d.mu.Lock()
	ends := !d.ended && reclaimed && !carries
	d.mu.Unlock()
	if !ends {
		return errors.Join(errs...)
	}
	if len(held) > 0 {
		go func() {
			for _, c := range held {
				<-c.stages.tornDown
			}
			if reclaimed, _ := d.gpu.Reclaim(); reclaimed {
				_ = d.end()
			}
		}()
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, d.end())...)
}

// closeCommunicators closes those that are open, and returns those that are not gone then: graphs
// of other libraries hold them, or they wait for work that was left.
func (d *Device) closeCommunicators() (held []*communicator, err error) {
	var errs []error
	late := false // a group that waits for work which was left; all wait for the same
	for _, c := range d.openCommunicators() {
		errs = append(errs, c.Close())
		ended := c.stages.await(c.stages.released, late || gpu.Stuck.Load())
		select {
		case <-c.stages.tornDown:
			ended = c.teardown.err
		default:
			held = append(held, c)
			if late {
				ended = nil // the first error says it
			}
			late = late || ended != nil && d.gpu.Keeps()
		}
		if !gpu.Stuck.Load() {
			errs = append(errs, ended)
		}
	}
	return held, errors.Join(errs...)
}

// end gives back what the device itself has, and then its context.
func (d *Device) end() error {
	errs := []error{d.gpu.Do(func() error {
		api := d.gpu.CUDA
		return errors.Join(d.streams.Close(), d.gpu.Aside.Close(api), d.scratch.Close(),
			d.gpu.Words.Close(api), d.reports.Close(api), d.messages.Descriptors.Close(api),
			d.collectives.Unload(d.gpu), d.messages.Copies.Unload(d.gpu))
	})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.ended = true
		errs = append(errs, d.gpu.Drop())
	}
	return errors.Join(errs...)
}

// leaveMachine closes what joins the ranks of this machine.
func (d *Device) leaveMachine() error {
	if d.machine == nil {
		return nil
	}
	machine := d.machine
	d.machine = nil
	return machine.Close()
}

func (d *Device) openCommunicators() []*communicator {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.communicators))
}

// groups are the open communicators, as streams know them.
func (d *Device) groups() []stream.Group {
	var all []stream.Group
	for _, c := range d.openCommunicators() {
		all = append(all, c.group)
	}
	return all
}

// othersHaveWindows reports whether another group may have a window kernel under way.
func (d *Device) othersHaveWindows(than *communicator) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for o := range d.communicators {
		if o != than && o.busy.Windows.Load() {
			return true
		}
	}
	return false
}

// remember puts a communicator on the device's list.
func (d *Device) remember(c *communicator) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.communicators[c] = struct{}{}
}

// forget takes a communicator off the device's list.
func (d *Device) forget(c *communicator) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.communicators, c)
}

// startsEarly reports whether NCCL's window kernels may begin before the work ahead of them has
// ended (nccl.EarlyStart).
func (d *Device) startsEarly() bool {
	code, _ := d.nccl.Version()
	return nccl.EarlyStart.In(code, d.gpu.Major)
}

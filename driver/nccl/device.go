package nccl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/control/shm"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
	"symmem/internal/ranked"
	"symmem/internal/scatter"
	"symmem/internal/sys"
)

// Device implements driver.Device for the GPU of one rank. While a stream is being captured, no
// segment can be registered.
type Device struct {
	cfg  driver.Config
	nccl *nccl.Library
	// ncclAnyThread makes the GPU's context current in each call.
	ncclAnyThread *nccl.Library
	gpu           *gpu.GPU
	info          driver.Info
	// machine transfers file descriptors between the ranks of this machine.
	machine     *shm.Machine
	exporter    memory.Exporter
	self        member
	members     members
	memory      *memory.Memory
	streams     *stream.Streams
	scratch     memory.Scratch
	reports     gpu.Pinned[kernels.Report]
	collectives gpu.Code
	messages    p2p.Device

	mu            ranked.Mutex[deviceMu]
	released      bool                       // guarded by mu
	communicators map[*communicator]struct{} // open or being torn down; guarded by mu
}

func (d *Device) open(ctx context.Context) error {
	// shm.Open must come first, because the other ranks wait in it for rank 0.
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

	device, err := chooseDevice(library, &d.cfg)
	if err != nil {
		return err
	}

	if d.gpu, err = gpu.Open(library, device, d.cfg.Timeout); err != nil {
		return err
	}

	d.ncclAnyThread = d.nccl.WithStep(d.gpu.ContextStep())
	d.info = driver.Info{Backend: "nccl", Name: d.gpu.Model, Granularity: d.gpu.Granularity}
	d.exporter = memory.Exporter{GPU: d.gpu, Machine: d.machine}
	d.memory = memory.New(d.gpu, scatter.New(d.cfg.Scatter, d.cfg.Rank, d.gpu.Granularity))
	d.memory.NCCLMapsCaptured = os.Getenv("NCCL_GRAPH_REGISTER") != "0"
	d.memory.ReleaseCaptured = d.releaseCaptured
	d.streams = &stream.Streams{
		GPU: d.gpu, Groups: d.groups, LongestTimeout: d.longestTimeout,
		NewCalls: func() stream.Calls { return newGraphCalls(d.gpu) },
	}
	d.messages.GPU, d.messages.Streams, d.messages.Exporter = d.gpu, d.streams, &d.exporter
	d.messages.Copies.CubinFuncs = []gpu.CubinFunc{kernels.MessageObject}
	return d.publishMember(ctx)
}

func (d *Device) publishMember(ctx context.Context) error {
	boot, err := sys.BootID()
	if err != nil {
		return err
	}

	machine, err := machineID(d.cfg.Rank, boot)
	if err != nil {
		return err
	}

	uuid, err := d.gpu.UUID()
	if err != nil {
		return err
	}

	code, _ := d.nccl.Version()
	d.self = member{
		Machine: machine, Host: control.HostName(), BootID: boot, GPUID: uuid, ProcessID: processID,
		Model: d.info.Name, NCCLVersion: code, NoFabricReason: d.gpu.NoFabricReason,
	}
	// Loading the kernels may wait for all streams, so do it before any stream waits for a message.
	if err := d.gpu.Do(func() error { return d.messages.Copies.Load(d.gpu) }); err != nil {
		d.self.NoKernelsReason = err.Error()
	}

	return d.publish(ctx, &d.self)
}

func (d *Device) publish(ctx context.Context, m *member) error {
	value, err := json.Marshal(m)
	if err != nil {
		return err
	}

	return d.cfg.Store.Set(ctx, memberKey(d.cfg.Rank), value)
}

// Info describes the device.
func (d *Device) Info() driver.Info { return d.info }

// Ordinal returns the GPU's number among those visible to the process.
func (d *Device) Ordinal() int { return d.gpu.Ordinal() }

// Library returns the name and version of the NCCL library in use.
func (d *Device) Library() string {
	_, text := d.nccl.Version()
	return "NCCL " + text
}

// NewArena reserves the address ranges of an arena.
func (d *Device) NewArena(bytes int64) (driver.Arena, error) { return d.memory.NewArena(bytes) }

// NewStream creates a stream.
func (d *Device) NewStream() (driver.Stream, error) {
	s, err := d.streams.NewStream()
	if err != nil {
		return nil, err
	}

	return s, nil
}

// AdoptStream wraps a stream that another library created.
func (d *Device) AdoptStream(handle uintptr) (driver.AdoptedStream, error) {
	s, err := d.streams.Adopt(handle)
	if err != nil {
		return nil, err
	}

	return s, nil
}

// NewEvent creates an event.
func (d *Device) NewEvent() (driver.Event, error) { return d.streams.NewEvent(), nil }

// Permute queues a kernel on the stream.
func (d *Device) Permute(s driver.Stream, p *driver.Permutation) error {
	return permuter{d.gpu, &d.collectives, d.streams}.queue(s, p, false)
}

// Unpermute is like Permute.
func (d *Device) Unpermute(s driver.Stream, p *driver.Permutation) error {
	return permuter{d.gpu, &d.collectives, d.streams}.queue(s, p, true)
}

func chooseDevice(library *cuda.Driver, cfg *driver.Config) (cuda.Device, error) {
	n, err := library.DeviceCount()
	if err != nil {
		return cuda.Device{}, err
	}

	ordinal := cfg.Device - 1
	if ordinal < 0 {
		ordinal = cfg.LocalRank
		switch {
		case n == 1:
			// Many launchers make only one GPU visible to each rank.
			ordinal = 0
		case isSharingEnabled() && n > 0:
			ordinal %= n
		}
	}

	if ordinal >= n && cfg.Device > 0 {
		return cuda.Device{}, fmt.Errorf("device %d: %w: %d GPUs are visible to the process "+
			"(CUDA_VISIBLE_DEVICES)", ordinal, driver.ErrUnsupported, n)
	}

	if ordinal >= n {
		return cuda.Device{}, fmt.Errorf("local rank %d: %w: %d GPUs are visible to the process; start "+
			"fewer ranks on this machine, make more GPUs visible (CUDA_VISIBLE_DEVICES), or let ranks "+
			"share GPUs (%s=1)", cfg.LocalRank, driver.ErrUnsupported, n, sharingVariable)
	}

	return library.Device(ordinal)
}

// Close closes open graphs first, because a communicator cannot be torn down while graphs contain
// its calls. Everything that graphs of other libraries use, including the CUDA context, is freed
// when these graphs are destroyed.
func (d *Device) Close() error {
	if d.gpu == nil {
		return d.leaveMachine()
	}

	errs := []error{d.streams.CloseGraphs()}
	d.memory.UseCounts.EndRemainingHolds()
	pending, err := d.closeCommunicators()
	errs = append(errs, err)
	for _, closeInbox := range d.messages.TakeClosers() {
		errs = append(errs, closeInbox())
	}

	errs = append(errs, d.leaveMachine())
	// Everything that a stream with an unfinished message uses is kept until the process exits.
	messagesEnded := func() (bool, error) { return d.messages.UnfinishedGroups.Load() == 0, nil }
	late := gpu.PollQueryFor(gpu.KernelEndTimeout, messagesEnded) != nil
	reclaimed, err := d.gpu.Reclaim()
	errs = append(errs, err)
	d.mu.Lock()
	mayRelease := !d.released && reclaimed && !late
	d.mu.Unlock()
	if !mayRelease {
		return errors.Join(errs...)
	}

	if len(pending) > 0 {
		go func() {
			for _, c := range pending {
				<-c.stages.allFreed
			}

			if reclaimed, _ := d.gpu.Reclaim(); reclaimed {
				_ = d.release()
			}
		}()
		return errors.Join(errs...)
	}

	return errors.Join(append(errs, d.release())...)
}

// RanksLost is part of driver.LossListener.
func (d *Device) RanksLost(ranks []int) {
	for _, c := range d.openCommunicators() {
		isLost := func(r int) bool { return slices.Contains(ranks, r) }
		if slices.ContainsFunc(c.cfg.Ranks, isLost) {
			c.stages.noteRankLost()
		}
	}
}

// closeCommunicators returns as pending those communicators that graphs of other libraries or
// unfinished work of closed streams still need.
func (d *Device) closeCommunicators() (pending []*communicator, err error) {
	var errs []error
	// After a timeout, the remaining teardowns would wait for the same work.
	timedOut := false
	for _, c := range d.openCommunicators() {
		errs = append(errs, c.Close())
		wait := c.stages.await
		if timedOut || gpu.Stuck.Load() {
			wait = c.stages.check
		}

		err := wait(c.stages.memoryFreed)
		select {
		case <-c.stages.allFreed:
			err = c.teardown.result
		default:
			pending = append(pending, c)
			if timedOut {
				err = nil // the first error is enough
			}

			timedOut = timedOut || err != nil && d.gpu.MustKeepMemory()
		}

		if !gpu.Stuck.Load() {
			errs = append(errs, err)
		}
	}

	return pending, errors.Join(errs...)
}

func (d *Device) release() error {
	errs := []error{d.gpu.Do(func() error {
		api := d.gpu.CUDA
		return errors.Join(d.streams.Close(), d.gpu.InternalStreams.Close(api), d.scratch.Close(),
			d.gpu.Words.Close(api), d.reports.Close(api), d.messages.Descriptors.Close(api),
			d.collectives.Unload(d.gpu), d.messages.Copies.Unload(d.gpu))
	})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.released {
		d.released = true
		errs = append(errs, d.gpu.Drop())
	}

	return errors.Join(errs...)
}

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

func (d *Device) groups() []stream.Group {
	var all []stream.Group
	for _, c := range d.openCommunicators() {
		all = append(all, c.group)
	}

	return all
}

func (d *Device) longestTimeout() time.Duration {
	longest := d.cfg.Timeout
	for _, c := range d.openCommunicators() {
		longest = max(longest, c.cfg.Timeout.Get())
	}

	return longest
}

// otherGroupsUseWindows reports whether a group other than c may have an unfinished window kernel
// (an NCCL kernel that accesses windows).
func (d *Device) otherGroupsUseWindows(c *communicator) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for other := range d.communicators {
		if other != c && other.busy.WindowKernels.Load() {
			return true
		}
	}

	return false
}

// NCCL maps memory outside windows on other ranks if a captured call uses it, and keeps it mapped
// after the graph is destroyed. If other memory is mapped at the same address, calls in a new graph
// would use the old memory.

// releaseCaptured makes NCCL unmap the memory of destroyed graphs on other ranks, except in failed
// groups, whose abort unmaps everything. The caller sets isUnmapping if it unmaps the memory even
// after an error. Groups with an error then fail.
func (d *Device) releaseCaptured(isUnmapping bool) error {
	affected := slices.DeleteFunc(d.openCommunicators(), func(c *communicator) bool {
		return !c.comm.mayMapCaptured.Load() || c.isClosing.Load() || c.plane.Cause() != nil
	})
	if len(affected) == 0 {
		return nil
	}

	ranked.AssertMayWait()
	address, err := d.scratch.Address(d.memory)
	if err == nil {
		err = awaitDestroyedGraphs(d.gpu)
	}

	if err != nil && !isUnmapping {
		return err
	}

	errs := make([]error, len(affected))
	// A stopped rank of one group must not delay the others.
	var all sync.WaitGroup
	for i, c := range affected {
		all.Go(func() {
			releaseErr := err
			if err == nil {
				releaseErr = releaseBeforeTimeout(c, address)
			}

			if releaseErr != nil && isUnmapping {
				releaseErr = failReleasing(c, releaseErr)
			}

			errs[i] = releaseErr
		})
	}

	all.Wait()
	return errors.Join(errs...)
}

// releaseBeforeTimeout calls unmapCaptured of a group's communicator, after Resume if the group is
// suspended: a kernel of a suspended communicator would destroy the CUDA context. If the call takes
// longer than the group's timeout, perhaps because a rank is stopped, the group fails.
func releaseBeforeTimeout(c *communicator, address uintptr) error {
	released := make(chan error, 1)
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		release := func() error { return c.comm.unmapCaptured(c.cfg.Rank, address) }
		switch {
		case c.isClosing.Load() || c.plane.Cause() != nil:
			released <- nil
		case c.comm.isSuspended:
			c.comm.afterResume = release
			released <- nil
		default:
			released <- release()
		}
	}()
	timer := time.NewTimer(c.cfg.Timeout.Get())
	defer timer.Stop()
	select {
	case err := <-released:
		return err
	case <-timer.C:
		return failReleasing(c, &driver.TimeoutError{
			InCall: "releasing the memory of closed graphs of group " + c.cfg.Name(),
			Waited: c.cfg.Timeout.Get(), Members: c.cfg.Ranks,
		})
	}
}

func failReleasing(c *communicator, err error) error {
	err = c.plane.Fail(err)
	c.teardown.begin()
	return err
}

func (d *Device) addCommunicator(c *communicator) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.communicators[c] = struct{}{}
}

func (d *Device) removeCommunicator(c *communicator) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.communicators, c)
}

// hasEarlyStart reports whether NCCL has the defect nccl.EarlyStart on this GPU: a window kernel
// may start before earlier work in its stream has completed.
func (d *Device) hasEarlyStart() bool {
	code, _ := d.nccl.Version()
	return nccl.EarlyStart.Affects(code, d.gpu.Major)
}

package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/control/tcp"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
	"symmem/internal/ras"
)

// Connect joins a group.
func (d *Device) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	if n := len(group.Ranks); n < 1 || group.Rank < 0 || group.Rank >= n {
		return nil, fmt.Errorf("joining group %s: rank %d of %d ranks", group.Name(), group.Rank, n)
	}

	group = group.WithTimeout(d.cfg.Timeout)
	ctx, cancel := control.WithDefaultTimeout(ctx, group.Timeout.Get())
	defer cancel()
	j := &joiner{device: d, cfg: group, comm: &ncclComm{gpu: d.gpu, library: d.nccl}}
	if err := j.join(ctx); err != nil {
		return nil, errors.Join(group.JoinError(err), j.discard())
	}

	j.result.watcher.goroutine.Go(j.result.watcher.watch)
	return j.result, nil
}

var communicatorCount atomic.Uint64

type joiner struct {
	device         *Device
	cfg            driver.GroupConfig
	members        []*member
	plane          control.Plane
	noSharedMemory bool
	comm           *ncclComm
	rasID          string // empty if NCCL's RAS subsystem must not be queried
	result         *communicator
}

func (j *joiner) join(ctx context.Context) error {
	var err error
	if j.members, err = j.device.members.awaitMembers(ctx, j.cfg.Ranks); err != nil {
		return err
	}

	j.cfg.Machines = hostNames(j.members)
	if j.plane, err = j.joinControlPlane(ctx); err != nil {
		return err
	}

	id, err := j.shareID(ctx)
	if err != nil {
		return err
	}

	version, _ := j.device.nccl.Version()
	if !nccl.RASOverflow.Affects(version, j.device.gpu.Major) {
		j.rasID = ras.ID(id[:])
	}

	if err := j.agree(ctx, j.create(ctx, id)); err != nil {
		return err
	}

	// All ranks have now exported their memory.
	if err := j.agree(ctx, j.result.messages.Map(ctx)); err != nil {
		return err
	}

	return j.result.messages.Withdraw()
}

func (j *joiner) create(ctx context.Context, id nccl.UniqueID) error {
	if err := j.connect(ctx, id); err != nil {
		return err
	}

	j.result = newCommunicator(j)
	if err := j.openMessages(); err != nil {
		return err
	}

	j.device.addCommunicator(j.result)
	return j.openExchange(ctx)
}

func newCommunicator(j *joiner) *communicator {
	d := j.device
	c := &communicator{
		device: d, plane: j.plane, Decisions: j.plane, cfg: j.cfg,
		lockPosition: communicatorCount.Add(1), members: j.members,
		comm: j.comm, busy: stream.BusyStreams{Wake: make(chan struct{}, 1)},
		direct: directPath{
			choose:  kernels.Choose,
			sharing: memory.Sharing{Exporter: &d.exporter, UseFabric: j.noSharedMemory},
		},
	}
	c.group, c.twoLevel.group = &c.owner, c
	c.comparisonEnabled.Store(j.cfg.Check)
	c.direct.announcements, _ = j.plane.(control.Announcements)
	c.initParts(j)
	return c
}

func (c *communicator) initParts(j *joiner) {
	d := c.device
	c.runTimer.gpu, c.runTimer.mu = d.gpu, &c.mu
	c.stages = newStages(d.gpu, &c.cfg, c.plane)
	c.faults = faults{
		cfg: &c.cfg, plane: c.plane, comparisonEnabled: &c.comparisonEnabled, isClosing: &c.isClosing,
		history:  &c.history,
		messages: &c.messages, direct: &c.direct, rasID: j.rasID,
	}
	c.comparer = comparer{
		cfg: &c.cfg, plane: c.plane, history: &c.history, direct: &c.direct, faults: &c.faults,
	}
	c.registrar = registrar{
		gpu: d.gpu, memory: d.memory, streams: d.streams,
		cfg: &c.cfg, plane: c.plane, mu: &c.mu, busy: &c.busy, comm: c.comm,
		direct: &c.direct, stages: &c.stages, windows: map[driver.SegmentKey]*window{},
		windowSupport: newWindowSupport(d.nccl, d.gpu.Major, &c.cfg, countMachines(c.members)),
		hasWindowGraphs: func() bool {
			r := &c.recorder
			return c.windowGraphs.Load() > 0 || r.capturedWindowKernels && r.graphHolds.HasActive()
		},
	}
	c.recorder = recorder{
		gpu: d.gpu, cfg: &c.cfg, busy: &c.busy, faults: &c.faults,
		graphHolds: memory.Holds{UseCounts: &d.memory.UseCounts},
	}
	c.suspender = suspender{
		gpu: d.gpu, cfg: &c.cfg, plane: c.plane, mu: &c.mu, comm: c.comm,
		exchange: &c.direct.exchange, messages: p2p.Suspender{Messages: &c.messages},
		levelTargets: c.twoLevel.suspendTargets,
	}
	c.owner = owner{
		gpu: d.gpu, cfg: &c.cfg, plane: c.plane, history: &c.history, direct: &c.direct,
		faults: &c.faults, stages: &c.stages, recorder: &c.recorder, teardown: &c.teardown,
	}
	c.watcher = watcher{
		cfg: &c.cfg, plane: c.plane, mu: &c.mu, busy: &c.busy, history: &c.history, comm: c.comm,
		messages: &c.messages, faults: &c.faults, comparer: &c.comparer, recorder: &c.recorder,
		stages: &c.stages, teardown: &c.teardown, runTimer: &c.runTimer,
	}
	c.teardown = teardown{
		gpu: d.gpu, cfg: &c.cfg, plane: c.plane, mu: &c.mu, busy: &c.busy, group: c.group,
		comm: c.comm, exchange: &c.direct.exchange, messages: &c.messages, runTimer: &c.runTimer,
		isMultiMachine: countMachines(c.members) > 1,
		registrar:      &c.registrar, recorder: &c.recorder, stages: &c.stages, openGraphs: &c.openGraphs,
		watcherGoroutine:      &c.watcher.goroutine,
		otherGroupsUseWindows: func() bool { return d.otherGroupsUseWindows(c) },
		removeFromDevice:      func() { d.removeCommunicator(c) },
	}
}

func (j *joiner) joinControlPlane(ctx context.Context) (control.Plane, error) {
	if countMachines(j.members) == 1 {
		sameMachine, err := j.device.machine.SameMachine(ctx, j.cfg.Ranks)
		if err != nil {
			return nil, err
		}

		if sameMachine {
			return j.device.machine.Join(ctx, j.cfg)
		}
	}

	j.noSharedMemory = true
	p, err := tcp.Join(ctx, tcp.Config{
		Store: j.device.cfg.Store, Group: j.cfg, Timeout: j.device.cfg.Timeout,
		Late: j.device.cfg.Late,
	})
	if err != nil {
		return nil, err // p would be a non-nil interface with a nil pointer
	}

	return p, nil
}

// shareID sends NCCL's unique ID from the group's first rank to the other ranks.
func (j *joiner) shareID(ctx context.Context) (nccl.UniqueID, error) {
	var id nccl.UniqueID
	var payload []byte
	var idErr error
	if j.cfg.Rank == 0 {
		if id, idErr = gpu.Get(j.device.gpu, j.device.nccl.UniqueID); idErr == nil {
			payload = id[:]
		}
	}

	all, err := j.plane.Exchange(ctx, driver.LaneControl, payload)
	if err = errors.Join(idErr, err); err != nil {
		return id, err
	}

	if copy(id[:], all[0]) != len(id) {
		return id, fmt.Errorf("rank %d has not sent NCCL's unique ID", j.cfg.Ranks[0])
	}

	return id, nil
}

// connect creates NCCL's communicator. NCCL waits for all ranks without a deadline, so a goroutine
// makes the call. The goroutine aborts the communicator if connect has given up.
func (j *joiner) connect(ctx context.Context, id nccl.UniqueID) error {
	type outcome struct {
		handle nccl.Comm
		err    error
	}
	done, quit, begin := make(chan outcome), make(chan struct{}), time.Now()
	defer close(quit)
	go func() {
		var o outcome
		o.err = j.device.gpu.Do(func() (err error) {
			o.handle, err = j.device.nccl.CommInitRank(len(j.cfg.Ranks), j.cfg.Rank, id)
			if err != nil || len(j.cfg.Ranks) == 1 || !firstSums {
				return err
			}

			return j.runFirstSum(o.handle, quit)
		})
		select {
		case done <- o:
		case <-quit:
			if o.handle != 0 && !gpu.Stuck.Load() {
				_ = j.device.gpu.Do(func() error { return j.device.nccl.CommAbort(o.handle) })
			}
		}
	}()
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	for {
		select {
		case o := <-done:
			j.comm.handle = o.handle
			return o.err
		case <-check.C:
			if j.plane.PeerFailed() {
				return j.plane.PeerFault("connecting NCCL's communicator of group " + j.cfg.Name())
			}
		case <-ctx.Done():
			return waitError(ctx, "connecting NCCL's communicator of group "+j.cfg.Name(), begin)
		}
	}
}

// runFirstSum runs a first collective, in which NCCL completes its initialization. In the program's
// first collective, that could deadlock: NCCL waits for all streams and for the other ranks, and a
// stream may be waiting for a message that another rank sends only later.
//
// runFirstSum must be called on a thread where the CUDA context is current. It returns an error
// once quit is closed.
func (j *joiner) runFirstSum(handle nccl.Comm, quit <-chan struct{}) error {
	d := j.device
	s, err := d.gpu.CUDA.StreamCreate()
	if err != nil {
		return err
	}

	buffer, err := d.gpu.CUDA.MemAllocAsync(roundUpForNCCL(1), s)
	if err != nil {
		return errors.Join(err, d.gpu.CUDA.StreamDestroy(s))
	}

	call := d.ncclAnyThread.AllReduce(buffer, buffer, 1, nccl.Uint8, nccl.Sum, handle)
	err = call.On(s)
	for done := false; !done && err == nil; {
		err = d.gpu.Query(func(gpu *cuda.Driver) error { done, err = gpu.StreamQuery(s); return err })
		if done || err != nil {
			break
		}

		select {
		case <-quit:
			return errors.New("connecting the group timed out")
		case <-time.After(firstSumInterval):
		}
	}

	return errors.Join(err, d.gpu.CUDA.MemFreeAsync(buffer, s), d.gpu.CUDA.StreamDestroy(s))
}

// roundUpForNCCL rounds up the size of a buffer, because NCCL reads whole words of 4 to 16 bytes.
func roundUpForNCCL(bytes int64) int64 { return (bytes + 15) &^ 15 }

// firstSums is unset in tests that need a launch to block on the host until a missing rank arrives.
var firstSums = true

const firstSumInterval = 50 * time.Microsecond

const failureExchangeTimeout = 2 * time.Second

// agree returns nil if a step has succeeded on all ranks, or the error of a rank where it failed.
// own is this rank's error or nil.
func (j *joiner) agree(ctx context.Context, own error) error {
	if own == nil {
		_, own = j.plane.Exchange(ctx, driver.LaneControl, nil)
	}

	if own == nil {
		return nil
	}

	_ = j.plane.Fail(own)
	var report []byte
	if !errors.Is(own, driver.ErrFault) {
		report = control.EncodeFailure(own)
	}

	reporting, cancel := context.WithTimeout(context.WithoutCancel(ctx), failureExchangeTimeout)
	defer cancel()
	all, err := j.plane.Exchange(reporting, driver.LaneFault, report)
	if report != nil || err != nil {
		return own
	}

	return cmp.Or(control.DecodeFailures(j.cfg.Ranks, all, "connecting"), own)
}

// discard frees everything that a failed Connect has created. If a kernel of the process is stuck,
// NCCL's communicator is kept.
func (j *joiner) discard() error {
	var errs []error
	if j.plane != nil {
		errs = append(errs, j.plane.Close())
	}

	if c := j.result; c != nil {
		j.device.removeCommunicator(c)
		defer close(c.stages.kernelsEnded)
		errs = append(errs, c.messages.Close())
		c.mu.Lock()
		defer c.mu.Unlock()
		errs = append(errs, c.direct.exchange.Close())
	}

	if j.comm.handle != 0 && !gpu.Stuck.Load() {
		errs = append(errs, j.comm.abort())
	}

	return errors.Join(errs...)
}

func (j *joiner) openExchange(ctx context.Context) (err error) {
	d, c := j.device, j.result
	c.direct.unavailableReason, err = c.direct.exchange.Open(ctx, direct.Group{
		Config: &c.cfg, Plane: c.plane, Sharing: &c.direct.sharing, Reports: &d.reports,
		Code: &d.collectives, SharerCount: countSharers(c.members, &d.self),
		NoFabricReason: noFabricReason(&c.cfg, c.members),
		CheckLinks:     func() error { return checkLinks(d.gpu, &d.self, c.members) },
	})
	return err
}

func (j *joiner) openMessages() error {
	c := j.result
	if noKernelsReason(&c.cfg, c.members) != "" {
		return nil
	}

	return c.messages.Open(p2p.Group{
		Owner: &c.owner, Device: &j.device.messages, Config: &c.cfg, Plane: c.plane,
		Busy: &c.busy, Check: &c.comparisonEnabled, Ended: c.stages.groupEnded, Mu: &c.mu,
	})
}

package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"symmem/internal/nccl"
	"symmem/internal/ras"
)

// Connect joins a group.
func (d *Device) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	if n := len(group.Ranks); n < 1 || group.Rank < 0 || group.Rank >= n {
		return nil, fmt.Errorf("connecting group %s: rank %d of %d ranks", group.Name(), group.Rank, n)
	}
	ctx, cancel := control.Bounded(ctx, d.cfg.Timeout)
	defer cancel()
	c := &communicator{
		device: d, cfg: group, number: communicators.Add(1),
		sharing:  memory.Sharing{Exporter: &d.exporter},
		captures: memory.Holds{UseCounts: &d.memory.UseCounts},
		windows:  map[driver.SegmentKey]*window{},
		busy:     stream.BusyStreams{Wake: make(chan struct{}, 1)},
		ended:    make(chan struct{}), kernelsEnded: make(chan struct{}),
		released: make(chan struct{}), tornDown: make(chan struct{}),
	}
	c.group = &owner{c}
	c.check.Store(group.Check)
	c.direct.choose = (*kernels.Launch).Choose
	if err := (joining{c}).join(ctx); err != nil {
		err = fmt.Errorf("connecting group %s: %w", group.Name(), err)
		return nil, errors.Join(err, joining{c}.discard())
	}
	c.watcher.Go(watcher{c}.watch)
	return c, nil
}

// joining is a communicator that is being made.
type joining struct{ *communicator }

func (c joining) join(ctx context.Context) error {
	var err error
	if c.members, err = c.device.members.awaitMembers(ctx, c.cfg.Ranks); err != nil {
		return err
	}
	if c.plane, err = c.joinPlane(ctx); err != nil {
		return err
	}
	c.direct.announcements, _ = c.plane.(control.Announcements)
	id, err := c.shareID(ctx)
	if err != nil {
		return err
	}
	c.unique = ras.ID(id[:])
	// What ranks map of each other has been made by all of them, then.
	if err := c.agree(ctx, c.equip(ctx, id)); err != nil {
		return err
	}
	if err := c.agree(ctx, c.messages.Map(ctx)); err != nil {
		return err
	}
	return c.messages.Withdraw()
}

// equip makes this rank's part of the communicator.
func (c joining) equip(ctx context.Context, id nccl.UniqueID) error {
	if err := c.connect(ctx, id); err != nil {
		return err
	}
	d := c.device
	c.supported = newSupport(d.nccl, d.gpu.Major, &c.cfg, machines(c.members))
	if err := c.openMessages(); err != nil {
		return err
	}
	// Known first: so no segment that comes or goes meanwhile is missed.
	c.device.mu.Lock()
	c.device.communicators[c.communicator] = struct{}{}
	c.device.mu.Unlock()
	return c.openExchange(ctx)
}

// joinPlane finds the way in which the ranks talk: shared memory on one machine, else TCP.
func (c joining) joinPlane(ctx context.Context) (control.Plane, error) {
	if machines(c.members) == 1 {
		together, err := c.device.machine.SameMachine(ctx, c.cfg.Ranks)
		if err != nil {
			return nil, err
		}
		if together {
			return c.device.machine.Join(ctx, c.cfg)
		}
	}
	c.sharing.Apart = true
	p, err := tcp.Join(ctx, tcp.Config{
		Store: c.device.cfg.Store, Group: c.cfg, Timeout: c.device.cfg.Timeout,
		Late: c.device.cfg.Late,
	})
	if err != nil {
		return nil, err // p is a nil of a type of its own, which would pass for a plane
	}
	return p, nil
}

// shareID has the first rank of the group make NCCL's unique id, and hands it to the others.
func (c joining) shareID(ctx context.Context) (nccl.UniqueID, error) {
	var id nccl.UniqueID
	var mine []byte
	var failed error
	if c.cfg.Rank == 0 {
		if id, failed = gpu.Get(c.device.gpu, c.device.nccl.UniqueID); failed == nil {
			mine = id[:]
		}
	}
	all, err := c.plane.Exchange(ctx, driver.LaneControl, mine)
	if err = errors.Join(failed, err); err != nil {
		return id, err
	}
	if copy(id[:], all[0]) != len(id) {
		return id, fmt.Errorf("rank %d made no NCCL id", c.cfg.Ranks[0])
	}
	return id, nil
}

// connect makes NCCL's communicator. NCCL waits for all ranks without a deadline, so it does that
// on a goroutine of its own, which a rank that never comes leaves behind. A communicator that is
// made too late is given back there.
func (c joining) connect(ctx context.Context, id nccl.UniqueID) error {
	type outcome struct {
		handle nccl.Comm
		err    error
	}
	done, gone, begin := make(chan outcome), make(chan struct{}), time.Now()
	defer close(gone)
	go func() {
		var o outcome
		o.err = c.device.gpu.Do(func() (err error) {
			o.handle, err = c.device.nccl.CommInitRank(len(c.cfg.Ranks), c.cfg.Rank, id)
			if err != nil || len(c.cfg.Ranks) == 1 || !firstSums {
				return err
			}
			return c.makeFirstSum(o.handle, gone)
		})
		select {
		case done <- o:
		case <-gone:
			if o.handle != 0 && !gpu.Stuck.Load() {
				_ = c.device.gpu.Do(func() error { return c.device.nccl.CommAbort(o.handle) })
			}
		}
	}()
	look := time.NewTicker(checkInterval)
	defer look.Stop()
	for {
		select {
		case o := <-done:
			c.handle = o.handle
			return o.err
		case <-look.C:
			if c.plane.PeerFailed() {
				return c.plane.PeerFault("connecting NCCL's communicator of group " + c.cfg.Name())
			}
		case <-ctx.Done():
			return overdue(ctx, "connecting NCCL's communicator of group "+c.cfg.Name(), begin)
		}
	}
}

// makeFirstSum has NCCL do what it leaves to the first collective of a communicator: that waits for
// all streams of the GPU and for the other ranks, so it would never end while a stream waits for a
// message that another rank sends behind its own first collective. It is called on a thread of the
// device, and given up when gone is closed.
func (c joining) makeFirstSum(handle nccl.Comm, gone <-chan struct{}) error {
	d := c.device
	on, err := d.gpu.CUDA.StreamCreate()
	if err != nil {
		return err
	}
	at, err := d.gpu.CUDA.MemAllocAsync(wholeReads(1), on)
	if err != nil {
		return errors.Join(err, d.gpu.CUDA.StreamDestroy(on))
	}
	call := d.anywhere.AllReduce(at, at, 1, nccl.Uint8, nccl.Sum, handle)
	err = call.On(on)
	for done := false; !done && err == nil; {
		if done, err = d.gpu.CUDA.StreamQuery(on); done || err != nil {
			break
		}
		select {
		case <-gone:
			return errors.New("nobody waits for the group any more")
		case <-time.After(firstSumLook):
		}
	}
	return errors.Join(err, d.gpu.CUDA.MemFreeAsync(at, on), d.gpu.CUDA.StreamDestroy(on))
}

// wholeReads rounds the size of memory up that is allocated for NCCL, which reads at least whole
// words of 4 bytes, at most 16 bytes at once.
func wholeReads(bytes int64) int64 { return (bytes + 15) &^ 15 }

// firstSums is false in tests of calls that wait for a rank themselves, as the first all-to-all of
// a communicator does still.
var firstSums = true

// firstSumLook is how often makeFirstSum looks.
const firstSumLook = 50 * time.Microsecond

// failureExchangeTimeout bounds how long ranks tell each other why a group could not be made.
const failureExchangeTimeout = 2 * time.Second

// agree makes a step all or nothing: it returns an error unless the step went well on all ranks. A
// rank on which it failed does not let the others wait, and tells them why.
func (c joining) agree(ctx context.Context, mine error) error {
	if mine == nil {
		_, mine = c.plane.Exchange(ctx, driver.LaneControl, nil)
	}
	if mine == nil {
		return nil
	}
	_ = c.plane.Fail(mine)
	var report []byte
	if !errors.Is(mine, driver.ErrFault) {
		report = control.EncodeFailure(mine)
	}
	reporting, cancel := context.WithTimeout(context.WithoutCancel(ctx), failureExchangeTimeout)
	defer cancel()
	all, err := c.plane.Exchange(reporting, driver.LaneFault, report)
	if report != nil || err != nil {
		return mine
	}
	return cmp.Or(control.DecodeFailures(c.cfg.Ranks, all, "connecting"), mine)
}

// discard takes back what a failed Connect has made. NCCL's part stays where a kernel does not end,
// as it does in tearDown.
func (c joining) discard() error {
	c.forget()
	defer close(c.kernelsEnded)
	var errs []error
	if c.plane != nil {
		errs = append(errs, c.plane.Close())
	}
	errs = append(errs, c.messages.Close())
	c.mu.Lock() // a segment may be registering with it
	defer c.mu.Unlock()
	errs = append(errs, c.direct.exchange.Close())
	if c.handle != 0 && !gpu.Stuck.Load() {
		errs = append(errs, c.device.gpu.Do(func() error { return c.device.nccl.CommAbort(c.handle) }))
	}
	return errors.Join(errs...)
}

// openExchange makes what kernels of our own need in the group.
func (c joining) openExchange(ctx context.Context) (err error) {
	c.direct.unavailable, err = c.direct.exchange.Open(ctx, direct.Group{
		Config: &c.cfg, Plane: c.plane, Sharing: &c.sharing, Reports: &c.device.reports,
		Code: &c.device.collectives, Sharers: sharers(c.members, &c.device.self),
		NoFabric: c.withoutFabric(),
		Linked:   func() error { return linked(c.device.gpu, &c.device.self, c.members) },
	})
	return err
}

// withoutFabric says why ranks that are apart cannot map each other's memory; it is empty if they
// may be able to. All ranks say the same.
func (c joining) withoutFabric() string {
	where := "in several containers"
	if m := machines(c.members); m > 1 {
		where = fmt.Sprintf("on %d machines", m)
	}
	for i, m := range c.members {
		if m.NoFabric != "" {
			return fmt.Sprintf("the ranks are %s, and rank %d has no fabric handles: %s", where,
				c.cfg.Ranks[i], control.Printable(m.NoFabric))
		}
	}
	return ""
}

// openMessages makes messages possible where the ranks have GPUs that run their kernels.
func (c joining) openMessages() error {
	if c.withoutKernels() != "" {
		return nil
	}
	return c.messages.Open(p2p.Group{
		Owner: c.group.(*owner), Device: &c.device.messages, Config: &c.cfg, Plane: c.plane,
		Busy: &c.busy, Check: &c.check, Ended: c.ended, Mu: &c.mu,
	})
}

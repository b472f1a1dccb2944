package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
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
	"symmem/internal/nccl"
	"symmem/internal/ranked"
)

// communicator joins the ranks of a group: NCCL's communicator for data, a plane for all else.
//
// States: open; failed, when its plane has failed (NCCL's part is then being aborted); closed. A
// failed or closed one is torn down in the background, once nothing holds its work any more:
// streams drained, graphs closed.
type communicator struct {
	// What every launch looks at comes first, side by side: few lines of a cache.

	device *Device
	plane  control.Plane
	check  atomic.Bool
	// closing tells that Close has begun: nothing is launched any more.
	closing atomic.Bool
	// replayed tells that another library has captured calls of the group. It may replay them at
	// any time, which is not seen here.
	replayed atomic.Bool
	// comparing is the call that a launch compares, which looks for trouble by itself, or nil.
	comparing atomic.Pointer[driver.Call]
	// mu is held while NCCL is called: it wants one thread at a time.
	mu      ranked.Spin[communicatorMu]
	busy    stream.Busy
	history history

	cfg     driver.GroupConfig
	number  uint64 // orders communicators of this rank
	members []*member
	loans   memory.Loans
	handle  nccl.Comm
	kinds   support
	// wanted tells that NCCL makes windows, although kernels of our own serve the group.
	wanted atomic.Bool

	graphs   sync.WaitGroup // open graphs that hold work of this communicator
	captures memory.Holds   // of graphs of other libraries
	// recorded tells what such captures have of NCCL's; guarded by mu.
	recorded struct{ plain, windows bool }
	// aborting tells that NCCL ends the communicator, and with it the windows that it has still.
	aborting atomic.Bool

	windows  map[driver.SegmentKey]*window // guarded by mu
	messages p2p.Messages
	direct   directPath
	// recordings are guarded by mu, and recording, the one that the call under way is put into.
	recordings direct.Recordings
	recording  *direct.Recording

	ending sync.Once
	// ended is closed when the communicator has failed or is closed, quiet when its kernels have
	// ended and its windows are gone, left when nothing is there any more but what graphs of other
	// libraries hold, and tornDown when that and NCCL's part are gone.
	ended, quiet, left, tornDown chan struct{}
	tearing                      error // why it did not go well; written before tornDown is closed
	watcher                      sync.WaitGroup
}

// communicators numbers the communicators of this process.
var communicators atomic.Uint64

// Connect joins a group.
func (d *Device) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	if n := len(group.Ranks); n < 1 || group.Rank < 0 || group.Rank >= n {
		return nil, fmt.Errorf("connecting group %s: rank %d of %d ranks", group.Name(), group.Rank, n)
	}
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	c := &communicator{
		device: d, cfg: group, number: communicators.Add(1),
		loans: memory.Loans{Lender: &d.lender}, captures: memory.Holds{Keepers: &d.memory.Keepers},
		windows: map[driver.SegmentKey]*window{},
		busy:    stream.Busy{Wake: make(chan struct{}, 1)},
		ended:   make(chan struct{}), quiet: make(chan struct{}),
		left: make(chan struct{}), tornDown: make(chan struct{}),
	}
	c.check.Store(group.Check)
	c.direct.choose = kernels.Choose
	if err := c.join(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("connecting group %s: %w", group.Name(), err), c.discard())
	}
	c.watcher.Go(c.watch)
	return c, nil
}

// bounded gives a context the device's timeout if it has no deadline.
func (d *Device) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d.cfg.Timeout)
}

func (c *communicator) join(ctx context.Context) error {
	var err error
	if c.members, err = c.device.meet(ctx, c.cfg.Ranks); err != nil {
		return err
	}
	if c.plane, err = c.joinPlane(ctx); err != nil {
		return err
	}
	c.direct.shown, _ = c.plane.(control.Announcements)
	id, err := c.shareID(ctx)
	if err != nil {
		return err
	}
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
func (c *communicator) equip(ctx context.Context, id nccl.UniqueID) error {
	if err := c.connect(ctx, id); err != nil {
		return err
	}
	c.kinds = newSupport(c)
	if err := c.openMessages(); err != nil {
		return err
	}
	// Known first: so no segment that comes or goes meanwhile is missed.
	c.device.mu.Lock()
	c.device.communicators[c] = struct{}{}
	c.device.mu.Unlock()
	return c.openExchange(ctx)
}

// joinPlane finds the way in which the ranks talk: shared memory on one machine, else TCP.
func (c *communicator) joinPlane(ctx context.Context) (control.Plane, error) {
	if machines(c.members) == 1 {
		together, err := c.device.machine.Together(ctx, c.cfg.Ranks)
		if err != nil {
			return nil, err
		}
		if together {
			return c.device.machine.Join(ctx, c.cfg)
		}
	}
	c.loans.Apart = true
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
func (c *communicator) shareID(ctx context.Context) (nccl.UniqueID, error) {
	var id nccl.UniqueID
	var mine []byte
	var failed error
	if c.cfg.Rank == 0 {
		failed = c.device.gpu.Do(func() (err error) {
			id, err = c.device.nccl.UniqueID()
			return err
		})
		if failed == nil {
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
func (c *communicator) connect(ctx context.Context, id nccl.UniqueID) error {
	type outcome struct {
		handle nccl.Comm
		err    error
	}
	done, gone, begin := make(chan outcome), make(chan struct{}), time.Now()
	defer close(gone)
	go func() {
		var o outcome
		o.err = c.device.gpu.Do(func() (err error) {
			o.handle, err = c.device.nccl.CommInitRank(len(c.cfg.Ranks), c.cfg.Rank, id, nccl.Config{})
			if err != nil || len(c.cfg.Ranks) == 1 || !firstSums {
				return err
			}
			return c.device.firstSum(o.handle, gone)
		})
		select {
		case done <- o:
		case <-gone:
			if o.handle != 0 && !gpu.Stuck.Load() {
				_ = c.device.gpu.Do(func() error { return c.device.nccl.CommAbort(o.handle) })
			}
		}
	}()
	look := time.NewTicker(glance)
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

// firstSum has NCCL do what it leaves to the first collective of a communicator: that waits for all
// streams of the GPU and for the other ranks, so it would never end while a stream waits for a
// message that another rank sends behind its own first collective. It is called on a thread of the
// device, and given up when gone is closed.
func (d *Device) firstSum(handle nccl.Comm, gone <-chan struct{}) error {
	on, err := d.gpu.CUDA.StreamCreate(true)
	if err != nil {
		return err
	}
	at, err := d.gpu.CUDA.MemAllocAsync(1, on)
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

// firstSums is false in tests of calls that wait for a rank themselves, as the first all-to-all of
// a communicator does still.
var firstSums = true

// firstSumLook is how often firstSum looks.
const firstSumLook = 50 * time.Microsecond

// overdue says why a context has ended during a wait for NCCL, which does not tell who is missing.
func overdue(ctx context.Context, doing string, begin time.Time) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	return &driver.TimeoutError{Doing: doing, Waited: time.Since(begin).Round(time.Millisecond)}
}

// failureExchangeTimeout bounds how long ranks tell each other why a group could not be made.
const failureExchangeTimeout = 2 * time.Second

// agree makes a step all or nothing: it returns an error unless the step went well on all ranks. A
// rank on which it failed does not let the others wait, and tells them why.
func (c *communicator) agree(ctx context.Context, mine error) error {
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
	told, cancel := context.WithTimeout(context.WithoutCancel(ctx), failureExchangeTimeout)
	defer cancel()
	all, err := c.plane.Exchange(told, driver.LaneFault, report)
	if report != nil || err != nil {
		return mine
	}
	return cmp.Or(control.DecodeFailures(c.cfg.Ranks, all, "connecting"), mine)
}

// discard takes back what a failed Connect has made. NCCL's part stays where a kernel does not end,
// as it does in tearDown.
func (c *communicator) discard() error {
	c.forget()
	defer close(c.quiet)
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

// Exchange sends payload to every rank and returns everybody's.
func (c *communicator) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane != driver.LaneFault {
		_ = c.askKernels() // what a kernel has reported ends the exchange
	}
	return c.plane.Exchange(ctx, lane, payload)
}

// Launched counts the calls by their path.
func (c *communicator) Launched() [driver.Paths]uint64 {
	return c.history.launched()
}

// SetCheck switches the comparison of calls.
func (c *communicator) SetCheck(on bool) { c.check.Store(on) }

// Failed is closed when the communicator fails.
func (c *communicator) Failed() <-chan struct{} { return c.plane.Failed() }

// Cause returns the first fault.
func (c *communicator) Cause() error { return c.plane.Cause() }

// CheckPeers fails the communicator if a kernel has reported a fault, or a peer has failed or is
// lost.
func (c *communicator) CheckPeers() {
	if c.closing.Load() || c.plane.Cause() != nil || c.askKernels() != nil || !c.plane.PeerFailed() {
		return
	}
	_ = c.plane.Fail(c.plane.PeerFault("between calls of group " + c.cfg.Name()))
}

// Abort fails the communicator for all its ranks.
func (c *communicator) Abort(cause error) {
	c.plane.Abort(cause)
	c.end()
}

// end reacts to a fault or to Close, once: streams with work under way are told, and then NCCL's
// kernels and blocked calls are ended.
func (c *communicator) end() {
	c.ending.Do(func() {
		working := !c.idle()
		for _, s := range c.busy.Streams() {
			if !s.Waited() {
				s.Blame(c, c.plane.Cause())
			}
		}
		close(c.ended)
		go c.tearDown(working)
	})
}

// Close leaves the group. Work that all ranks have launched is waited for; other work ends with
// ErrClosed.
func (c *communicator) Close() error {
	c.closing.Store(true)
	for turns := 0; turns < closingTurns && c.plane.Cause() == nil; turns++ {
		ended, missing := c.finishWork()
		// What is under way ends with NCCL's communicator, and ranks that come to it later must not
		// take it for complete. If all have come by now they count on this one.
		if ended || c.plane.Withdraw() || !missing {
			break
		}
	}
	unmatched := c.messages.Unmatched()
	err := c.plane.Close()
	c.end()
	c.watcher.Wait()
	return errors.Join(unmatched, err)
}

// closingTurns is how often Close waits for work that all ranks have come to meanwhile.
const closingTurns = 3

// finishWork waits for the work of this rank's streams as long as it can be expected to end. It
// reports whether it has ended, and whether some rank had yet to launch its part.
func (c *communicator) finishWork() (ended, missing bool) {
	ctx, cancel := context.WithTimeout(context.Background(), c.device.cfg.Timeout)
	defer cancel()
	_ = gpu.Poll(ctx, func() bool { // what counts is whether the work has ended
		ticket, _ := c.history.last()
		ended = c.idle()
		missing = !ended && !c.complete(ticket)
		return ended || missing || c.messages.Unanswered() || c.plane.Cause() != nil
	})
	return ended || c.idle(), missing
}

// complete reports whether every rank has launched a collective, and nothing keeps it from its end.
func (c *communicator) complete(ticket uint64) bool {
	return c.plane.Trouble(c.waitFor(ticket, driver.Barrier), time.Time{}) == nil
}

// awaitEnd waits for a step of the teardown; not at all if that is hopeless. After a fault it is
// soon done, or never; in order it may take what a busy machine makes of it.
func (c *communicator) awaitEnd(step chan struct{}, hopeless bool) error {
	patience := 4 * gpu.EndingTime
	switch {
	case hopeless:
		patience = 0
	case errors.Is(c.plane.Cause(), driver.ErrClosed):
		patience = max(patience, c.device.cfg.Timeout)
	}
	select {
	case <-step:
		return nil
	case <-time.After(patience):
		return &driver.TimeoutError{
			Doing: "ending NCCL's communicator of group " + c.cfg.Name(), Waited: patience,
		}
	}
}

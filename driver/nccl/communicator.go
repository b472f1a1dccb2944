package nccl

import (
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
	"symmem/internal/control"
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
	// closing reports whether Close has begun: nothing is launched any more.
	closing atomic.Bool
	// replayed reports whether another library has captured calls of the group. It may replay them at
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
	unique  string // how NCCL's RAS names the communicator
	kinds   support
	// wanted reports whether NCCL makes windows, although kernels of our own serve the group.
	wanted atomic.Bool

	graphs   sync.WaitGroup // open graphs that hold work of this communicator
	captures memory.Holds   // of graphs of other libraries
	// recorded is what such captures have of NCCL's; guarded by mu.
	recorded struct{ plain, windows bool }
	// aborting reports whether NCCL ends the communicator, and with it the windows that it has still.
	aborting atomic.Bool

	windows  map[driver.SegmentKey]*window // guarded by mu
	messages p2p.Messages
	group    stream.Group // it, as streams know it
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

// What a communicator offers beyond what it must.
var (
	_ driver.LazyWindows   = (*communicator)(nil)
	_ driver.MessageCounts = (*communicator)(nil)
	_ driver.Native        = (*communicator)(nil)
	_ driver.Recorder      = (*communicator)(nil)
)

// communicators numbers the communicators of this process.
var communicators atomic.Uint64

// Exchange sends payload to every rank and returns everybody's.
func (c *communicator) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane != driver.LaneFault {
		_ = c.askKernels() // what a kernel has reported ends the exchange
	}
	return c.plane.Exchange(ctx, lane, payload)
}

// Named returns this rank's end of a name.
func (c *communicator) Named(name string, ordered bool) (driver.Named, error) {
	return c.plane.Named(name, ordered)
}

// Collectives is how many collectives this rank has launched.
func (c *communicator) Collectives() uint64 { return c.plane.Collectives() }

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
				s.Blame(c.group, c.plane.Cause())
			}
		}
		close(c.ended)
		go ending{c}.tearDown(working)
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

// overdue says why a context has ended during a wait for NCCL, which does not tell who is missing.
func overdue(ctx context.Context, doing string, begin time.Time) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	return &driver.TimeoutError{Doing: doing, Waited: time.Since(begin).Round(time.Millisecond)}
}

// idle reports whether no stream has work and no call is being made.
func (c *communicator) idle() bool {
	if !c.mu.TryLock() {
		return false
	}
	c.mu.Unlock()
	return c.busy.AllIdle()
}

// waitFor describes the wait for a collective.
func (c *communicator) waitFor(ticket uint64, operation driver.Operation) control.Wait {
	return control.Wait{
		Ticket: ticket, Operation: operation,
		Doing: func() string { return fmt.Sprintf("%v %d of group %s", operation, ticket, c.cfg.Name()) },
		Why: func() error {
			// Reports come first: they end what waits.
			if err := c.faulted(); err != nil {
				return err
			}
			if err := c.messages.Examine(); err != nil {
				return err
			}
			return c.strayed(ticket)
		},
		Counts: func() string { return countsOf(c) },
	}
}

// forget takes the communicator off the device's list.
func (c *communicator) forget() {
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	delete(c.device.communicators, c)
}

// withoutMessages says why ranks of the group cannot send messages to each other.
func (c *communicator) withoutMessages() error {
	if why := c.withoutKernels(); why != "" {
		return fmt.Errorf("messages: %s: %w", why, driver.ErrUnsupported)
	}
	return fmt.Errorf("messages between ranks of several machines: %w", driver.ErrUnsupported)
}

// withoutKernels says why some rank of the group runs no kernels of our own, or is empty.
func (c *communicator) withoutKernels() string {
	for i, m := range c.members {
		if m.NoKernels != "" {
			return fmt.Sprintf("rank %d of the world: %s", c.cfg.Ranks[i], control.Printable(m.NoKernels))
		}
	}
	return ""
}

// MessagesBefore lists what this rank has sent and received before a collective.
func (c *communicator) MessagesBefore(collective uint64) []driver.MessageEnds {
	return c.messages.Before(collective)
}

// Handle is the group's ncclComm_t, for other calls of NCCL's; 0 once the group has failed or Close
// has begun.
func (c *communicator) Handle() uintptr {
	if c.closing.Load() || c.plane.Cause() != nil {
		return 0
	}
	return uintptr(c.handle)
}

// Record puts a collective into a capture of the stream's owner.
func (c *communicator) Record(on driver.Stream, p driver.Plan) error {
	return recorder{c}.record(on, p)
}

// Register makes a window over a segment.
func (c *communicator) Register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	w, err := registrar{c}.register(ctx, key, s)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// UseWindows has NCCL make windows, if the group can do without so far.
func (c *communicator) UseWindows(ctx context.Context) error { return registrar{c}.useAll(ctx) }

// unwanted reports whether NCCL makes no windows, since kernels of our own serve the group.
func (c *communicator) unwanted() bool { return c.direct.none == "" && !c.wanted.Load() }

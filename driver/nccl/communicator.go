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
	"symmem/driver/nccl/kernels"
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
	// comparing is the call that a launch compares, which checks the peers by itself, or nil.
	comparing atomic.Pointer[driver.Call]
	// mu is held while NCCL is called: it wants one thread at a time.
	mu      ranked.Spin[communicatorMu]
	busy    stream.BusyStreams
	history history

	cfg       driver.GroupConfig
	number    uint64 // orders communicators of this rank
	members   []*member
	sharing   memory.Sharing
	handle    nccl.Comm
	unique    string // how NCCL's RAS names the communicator
	supported support
	// useWindows reports whether NCCL makes windows, although kernels of our own serve the group.
	useWindows atomic.Bool

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
	// ended is closed when the communicator has failed or is closed; kernelsEnded when its kernels
	// have ended and its windows are gone, or kernels are late, and windows end with it; released
	// when nothing is left but what graphs of other libraries hold; tornDown when that and NCCL's
	// part are gone.
	ended, kernelsEnded, released, tornDown chan struct{}
	tearing                                 error // of the teardown; written before tornDown is closed
	watcher                                 sync.WaitGroup
}

// directPath runs collectives of a group by kernels of our own (package kernels).
type directPath struct {
	// unavailable says why the group has none; empty if it has. It is set before the group is used.
	unavailable string
	// choose is Launch.Choose; a test counts its calls.
	choose   func(*kernels.Launch) error
	exchange direct.Exchange
	order    direct.LaunchOrder
	// announcements is where ranks see what others have launched.
	announcements control.Announcements
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

// awaitEnd waits for a step of the teardown; not at all if that is hopeless. After a fault it is
// soon done, or never; in order it may take what a busy machine makes of it. The last steps wait
// for work that was left (awaitDevice), which has had its time.
func (c *communicator) awaitEnd(step chan struct{}, hopeless bool) error {
	patience := 4 * gpu.EndingTime
	switch {
	case hopeless:
		patience = 0
	case step == c.released && c.device.gpu.Keeps():
		patience = gpu.EndingTime
	case errors.Is(c.plane.Cause(), driver.ErrClosed):
		patience = max(patience, c.device.cfg.Timeout)
	}
	select {
	case <-step:
		return nil // also if there is no time
	default:
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

// Register makes a window over a segment.
func (c *communicator) Register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	return registrar{c}.register(ctx, key, s)
}

// UseWindows has NCCL make windows, if the group can do without so far.
func (c *communicator) UseWindows(ctx context.Context) error { return registrar{c}.useAll(ctx) }

// skipsWindows reports whether NCCL makes no windows, since kernels of our own serve the group.
func (c *communicator) skipsWindows() bool {
	return c.direct.unavailable == "" && !c.useWindows.Load()
}

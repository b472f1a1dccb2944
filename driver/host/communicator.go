package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
	"symmem/internal/reduce"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// communicator joins the ranks of a group through a control region.
//
// States: open; failed, after the first fault that this rank sees or causes; closed. Transitions
// go one way only. A failed communicator ends every wait on it, tells its peers by the bell, and
// answers on the fault lane alone.
//
// Collectives run one at a time, in the order of their tickets, which Launch hands out. The one
// that runs owns step and what follows it.
type communicator struct {
	// What a ticket needs comes first, side by side: few lines of a cache.

	device    *Device
	me        *block
	fault     fault
	mu        ranked.Spin[communicatorMu]
	submitted uint64 // tickets handed out; guarded by mu
	withdrawn bool   // those from now on are not shown; guarded by mu
	closed    bool   // guarded by mu
	check     atomic.Bool

	captures atomic.Uint64 // with calls of the group

	cfg    driver.GroupConfig
	peers  []*peer // by group rank; nil at this rank's own place
	region *sys.Mapping
	blocks []*block // by group rank
	others []*block // blocks without me, in group order
	budget budget
	tuning tuning
	space  uint64 // keys of this group's exports

	lanes [driver.Lanes]lane
	mail  mail

	left      sync.Cond            // mu; signalled when users falls
	users     int                  // exchanges and transfers under way; guarded by mu
	warned    atomic.Uint64        // when ranks were last warned of, by the monotonic clock, or 0
	waits     []*waiting           // slow waits in collectives; guarded by mu
	launched  [driver.Paths]uint64 // guarded by mu
	passed    chan struct{}        // closed when completed moves and somebody waits; guarded by mu
	waiters   atomic.Int32         // for a turn
	completed uint64               // tickets done; written by who has the turn
	windows   map[driver.SegmentKey]*window

	step     uint64 // last step posted
	checking bool   // the collective that runs is compared
	late     bool   // a peer had failed before the collective began
	// balance is what this rank's messages weighed when the collective was called, 0 if that is not
	// compared; shown is what stands next to its two lines.
	balance      uint64
	shown        [2]uint64
	inbox        []inbox // by group rank
	division     division
	sources      [reduce.MaxSources]unsafe.Pointer
	destinations [reduce.MaxDestinations]unsafe.Pointer
}

// fault is why a communicator failed.
type fault struct {
	set   atomic.Bool
	ended chan struct{}
	cause error // written before ended is closed
}

// Connect joins a group.
func (d *Device) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	c, err := d.connect(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("connecting group %s: %w", group.Name(), err)
	}
	return c, nil
}

// connect leaves it to its caller to say what it is for.
func (d *Device) connect(ctx context.Context, group driver.GroupConfig) (*communicator, error) {
	if n := len(group.Ranks); n < 1 || n > maxRanks || group.Rank < 0 || group.Rank >= n {
		return nil, fmt.Errorf("rank %d of %d ranks: the host backend takes from 1 to %d ranks",
			group.Rank, n, maxRanks)
	}
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	c := newCommunicator(d, group)
	if err := c.join(ctx); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// bounded gives a context the device's timeout if it has no deadline.
func (d *Device) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d.cfg.Timeout)
}

func newCommunicator(d *Device, group driver.GroupConfig) *communicator {
	n := len(group.Ranks)
	c := &communicator{
		device: d, cfg: group,
		peers:   make([]*peer, n),
		mail:    newMail(n),
		inbox:   make([]inbox, n),
		space:   handoff.Space("group/" + group.ID),
		fault:   fault{ended: make(chan struct{})},
		windows: map[driver.SegmentKey]*window{},
	}
	c.left.L, c.passed = &c.mu, make(chan struct{})
	c.check.Store(group.Check)
	for i := range c.lanes {
		c.lanes[i].absent, c.lanes[i].read = make([]bool, n), map[*block]uint64{}
	}
	return c
}

// Launched counts the calls by their path.
func (c *communicator) Launched() [driver.Paths]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.launched
}

// SetCheck switches the comparison of calls.
func (c *communicator) SetCheck(on bool) { c.check.Store(on) }

// Failed is closed when the communicator fails.
func (c *communicator) Failed() <-chan struct{} { return c.fault.ended }

// Cause returns the first fault.
func (c *communicator) Cause() error {
	if !c.fault.set.Load() {
		return nil
	}
	<-c.fault.ended
	return c.fault.cause
}

// Abort fails the communicator for all its ranks.
func (c *communicator) Abort(cause error) {
	if cause == nil {
		cause = driver.ErrAborted
	}
	if c.enter() != nil {
		return
	}
	defer c.leave()
	c.fail(cause)
}

// CheckPeers fails the communicator if a peer has failed or is lost.
func (c *communicator) CheckPeers() {
	if c.fault.set.Load() || c.enter() != nil {
		return
	}
	defer c.leave()
	if c.peerFailed() || len(c.lostPeers()) > 0 {
		c.fail(control.PeerFailure(c.cfg, c.survey(&waiting{}), "between calls of group "+c.cfg.Name()))
	}
}

// lostPeers lists the group ranks whose processes have ended before they left the group.
func (c *communicator) lostPeers() []int {
	return slices.DeleteFunc(c.lost(c.everybodyElse()), func(r int) bool {
		return spin.LoadAcquire64(&c.blocks[r].board.closed) != 0
	})
}

// fail records the first fault, tells the peers and returns the error it was given.
func (c *communicator) fail(err error) error {
	if c.end(err) {
		atomic.StoreUint32(&c.me.bell.failed, uint32(control.ReasonOf(err)))
		c.alarm()
	}
	return err
}

// end moves the communicator out of its open state, once.
func (c *communicator) end(err error) bool {
	if !c.fault.set.CompareAndSwap(false, true) {
		return false
	}
	c.fault.cause = err
	close(c.fault.ended)
	return true
}

// alarm wakes everybody, this rank's own threads included. It rings every bell, whether somebody
// sleeps there or not: planes take a bell that has not rung for peace.
func (c *communicator) alarm() {
	for _, b := range c.blocks {
		atomic.AddUint32(&b.bell.word, 1)
		sys.FutexWake(&b.bell.word)
	}
}

// peerFailed reports whether a peer has failed. One that has before this rank posts a step did not
// wait for it; one that fails afterwards may have completed the step.
func (c *communicator) peerFailed() bool {
	for _, b := range c.others {
		if atomic.LoadUint32(&b.bell.failed) != 0 {
			return true
		}
	}
	return false
}

// ring wakes the peers that sleep. It is called after every post: see the package comment for
// why no fence is needed in front of the load.
func (c *communicator) ring() {
	for _, b := range c.others {
		if atomic.LoadInt32(&b.bell.sleeping) != 0 {
			atomic.AddUint32(&b.bell.word, 1)
			sys.FutexWake(&b.bell.word)
		}
	}
}

// enter counts a user of the region; leave ends it. Close waits for all of them.
func (c *communicator) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("group %s: %w", c.cfg.Name(), driver.ErrClosed)
	}
	c.users++
	return nil
}

func (c *communicator) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users--
	c.left.Broadcast()
}

// Close leaves the group once the peers have taken, or have room for, what was sent to them. A
// collective behind work that does not end keeps the memory of the group mapped until it has.
func (c *communicator) Close() error {
	lost := c.flush()
	failed := c.Cause() != nil
	last, left := c.depart()
	if !left {
		return nil
	}
	var unmatched error
	if !failed {
		unmatched = c.errUnmatched()
	}
	patience := 2 * c.device.cfg.Timeout
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.awaitTurnUntil(last+1, ctx.Done()) {
		return errors.Join(lost, unmatched, c.release())
	}
	go func() {
		c.awaitTurn(last + 1)
		_ = c.release() // nobody is there to be told
	}()
	return errors.Join(lost, unmatched, &driver.TimeoutError{
		Doing: "closing group " + c.cfg.Name() + ": work of this rank on a stream, in front of a " +
			"collective, has not ended", Waited: patience,
	})
}

// depart tells everybody that this rank leaves and waits for the users of the region. It returns
// the last ticket, and whether this was the first call.
func (c *communicator) depart() (last uint64, left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, false
	}
	c.closed = true
	c.end(fmt.Errorf("group %s: %w", c.cfg.Name(), driver.ErrClosed))
	spin.StoreRelease64(&c.me.board.closed, 1)
	c.alarm()
	for c.users > 0 {
		c.left.Wait()
	}
	return c.submitted, true
}

// release unmaps everything that the communicator maps.
func (c *communicator) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, w := range c.windows {
		errs = append(errs, w.unmap())
	}
	if c.region != nil {
		errs = append(errs, c.region.Close())
		c.region = nil
	}
	return errors.Join(errs...)
}

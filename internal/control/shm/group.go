package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// Group joins the ranks of a group through a control region. A plane is a Group whose data moves
// elsewhere; a backend whose data moves through the region, too, puts a Group into its
// communicator.
//
// States: zero; open, after Join; failed, after the first fault that this rank sees or causes;
// closed. Transitions go one way only. When a group fails, every wait on it ends, its peers are
// woken, and only exchanges on the fault lane still work.
//
// Collectives run one at a time, in the order of their tickets, and only the one that runs makes
// steps. The caller ensures that.
type Group struct {
	// What a ticket needs comes first, side by side: few lines of a cache.

	machine *Machine
	me      *block
	fault   fault
	// Mu also guards what a communicator notes together with its tickets.
	Mu        ranked.Spin[groupMu]
	submitted uint64 // tickets handed out; guarded by Mu
	withdrawn bool   // those from now on are not published; guarded by Mu
	closed    bool   // guarded by Mu

	checking         bool   // the collective that runs is compared
	peerFailedBefore bool   // a peer had failed before the collective began
	step             uint64 // last step posted
	// balance is this rank's balance of messages when the collective was called, 0 if that is not
	// compared; postedBalances are those next to its two lines.
	balance        uint64
	postedBalances [2]uint64
	others         []*block // blocks without me, in group order
	blocks         []*block // by group rank
	budget         budget

	Counts

	cfg        driver.GroupConfig
	peers      []*peer // by group rank; nil at this rank's own place
	region     *sys.Mapping
	processors int    // of all ranks
	space      uint64 // keys of this group's exports

	lanes [driver.Lanes]lane

	named     []*named      // by number; guarded by Mu
	usersDone sync.Cond     // Mu; signalled when users falls
	users     int           // exchanges and transfers under way; guarded by Mu
	warned    atomic.Uint64 // when ranks were last warned of, by the monotonic clock, or 0
	waits     []*waiting    // slow waits in collectives; guarded by Mu
}

// fault is why a group failed.
type fault struct {
	set   atomic.Bool
	ended chan struct{}
	cause error // written before ended is closed
}

// Join meets the ranks of a group. It is collective, and needs all of them on this machine. Behind
// the region's own parts lie so many bytes of Data, alike on all ranks. The machine must be closed
// after the group.
func (g *Group) Join(
	ctx context.Context, m *Machine, cfg driver.GroupConfig, dataBytes int64,
) error {
	n := len(cfg.Ranks)
	if n < 1 || n > MaxRanks || cfg.Rank < 0 || cfg.Rank >= n {
		return fmt.Errorf("rank %d of %d ranks: shared memory joins from 1 to %d ranks",
			cfg.Rank, n, MaxRanks)
	}
	ctx, cancel := m.Bounded(ctx)
	defer cancel()
	g.machine, g.cfg, g.peers = m, cfg, make([]*peer, n)
	g.Counts.group = &g.cfg
	g.space = handoff.Space("group/" + cfg.ID)
	g.fault.ended = make(chan struct{})
	g.usersDone.L = &g.Mu
	for i := range g.lanes {
		g.lanes[i].absent, g.lanes[i].read = make([]bool, n), map[*block]uint64{}
	}
	if err := g.join(ctx, dataBytes); err != nil {
		return errors.Join(err, g.Release())
	}
	return nil
}

// Size is how many ranks the group has.
func (g *Group) Size() int { return len(g.blocks) }

// Processors is how many processors the ranks have between them.
func (g *Group) Processors() int { return g.processors }

// Data is the memory of the region that Join was asked for. Whoever uses it has called BeginUse
// or waits for Release.
func (g *Group) Data() unsafe.Pointer {
	return unsafe.Add(g.region.Base(), blocksBytes(len(g.blocks)))
}

// Fetch asks a rank of the group for what it has exported. The error is a driver.RankLostError if
// that fails because its process has ended.
func (g *Group) Fetch(
	ctx context.Context, rank int, key handoff.Key, doing string,
) (*os.File, error) {
	p := g.peers[rank]
	f, err := p.Fetch(ctx, key)
	if err != nil && p.hasEnded() {
		return nil, &driver.RankLostError{Ranks: []int{p.rank}, Doing: doing}
	}
	return f, err
}

// Failed is closed when the group fails.
func (g *Group) Failed() <-chan struct{} { return g.fault.ended }

// HasFailed reports whether Cause has an error.
func (g *Group) HasFailed() bool { return g.fault.set.Load() }

// Cause returns the first fault.
func (g *Group) Cause() error {
	if !g.fault.set.Load() {
		return nil
	}
	<-g.fault.ended
	return g.fault.cause
}

// Abort fails the group for all its ranks.
func (g *Group) Abort(cause error) {
	if cause == nil {
		cause = driver.ErrAborted
	}
	if g.BeginUse() != nil {
		return
	}
	defer g.EndUse()
	g.fail(cause)
}

// CheckPeers fails the group if a peer has failed or is lost.
func (g *Group) CheckPeers() {
	if g.fault.set.Load() || g.BeginUse() != nil {
		return
	}
	defer g.EndUse()
	if g.peerFailed() || len(g.lostPeers()) > 0 {
		states := g.rankStates(&waiting{})
		g.fail(control.PeerFailure(g.cfg, states, "between calls of group "+g.cfg.Name()))
	}
}

// lostPeers lists the group ranks whose processes have ended before they left the group.
func (g *Group) lostPeers() []int { return slices.DeleteFunc(g.lost(g.Others()), g.HasLeft) }

// Fail records the first fault, tells the peers and returns the error it was given.
func (g *Group) Fail(err error) error {
	if g.BeginUse() != nil {
		return err
	}
	defer g.EndUse()
	return g.fail(err)
}

// fail is Fail for a caller that has called BeginUse.
func (g *Group) fail(err error) error {
	if g.end(err) {
		atomic.StoreUint32(&g.me.wakeup.failed, uint32(control.ReasonOf(err)))
		g.wakeAll()
	}
	return err
}

// end moves the group out of its open state, once.
func (g *Group) end(err error) bool {
	if !g.fault.set.CompareAndSwap(false, true) {
		return false
	}
	g.fault.cause = err
	close(g.fault.ended)
	return true
}

// wakeAll wakes all ranks, this rank's own threads included. It increments every futex word,
// whether a thread sleeps there or not: planes take an unchanged word to mean that no peer has
// failed.
func (g *Group) wakeAll() {
	for _, b := range g.blocks {
		b.wakeup.wake()
	}
}

// peerFailed reports whether a peer has failed. One that has before this rank posts a step did not
// wait for it; one that fails afterwards may have completed the step.
func (g *Group) peerFailed() bool {
	for _, b := range g.others {
		if atomic.LoadUint32(&b.wakeup.failed) != 0 {
			return true
		}
	}
	return false
}

// wakeSleepers wakes the peers that sleep. It is called after every post: see the package comment
// for why no fence is needed in front of the load.
func (g *Group) wakeSleepers() {
	for _, b := range g.others {
		if atomic.LoadInt32(&b.wakeup.sleeping) != 0 {
			b.wakeup.wake()
		}
	}
}

// Wake wakes the threads of a rank, which may be this one, if they sleep.
func (g *Group) Wake(rank int) {
	if g.Asleep(rank) {
		g.blocks[rank].wakeup.wake()
	}
}

// BeginUse counts a user of the region, until EndUse. LeaveGroup waits for all users.
func (g *Group) BeginUse() error {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.closed {
		return fmt.Errorf("group %s: %w", g.cfg.Name(), driver.ErrClosed)
	}
	g.users++
	return nil
}

// EndUse ends what BeginUse has begun.
func (g *Group) EndUse() {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.users--
	g.usersDone.Broadcast()
}

// Closed reports whether this rank has left the group. Mu is held.
func (g *Group) Closed() bool { return g.closed }

// LeaveGroup publishes that this rank leaves the group, and waits for the users of the region. It
// returns the last ticket, and whether this was the first call.
func (g *Group) LeaveGroup() (last uint64, left bool) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.closed {
		return 0, false
	}
	g.closed = true
	g.end(fmt.Errorf("group %s: %w", g.cfg.Name(), driver.ErrClosed))
	spin.StoreRelease64(&g.me.status.closed, 1)
	g.wakeAll()
	for g.users > 0 {
		g.usersDone.Wait()
	}
	return g.submitted, true
}

// Release unmaps the region. Nobody uses it any more.
func (g *Group) Release() error {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.region == nil {
		return nil
	}
	err := g.region.Close()
	g.region = nil
	return err
}

// TicketsOf is how many tickets a rank of the group has published.
func (g *Group) TicketsOf(rank int) uint64 {
	return spin.LoadAcquire64(&g.blocks[rank].status.submitted)
}

// HasLeft reports whether a rank has left the group.
func (g *Group) HasLeft(rank int) bool {
	return spin.LoadAcquire64(&g.blocks[rank].status.closed) != 0
}

// Others lists the other ranks of the group.
func (g *Group) Others() []int {
	var ranks []int
	for r := range g.blocks {
		if r != g.cfg.Rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Present lists the other ranks that have not left the group.
func (g *Group) Present() []int { return slices.DeleteFunc(g.Others(), g.HasLeft) }

// Asleep reports whether a thread of a rank sleeps in a wait.
func (g *Group) Asleep(rank int) bool {
	return atomic.LoadInt32(&g.blocks[rank].wakeup.sleeping) != 0
}

// Named returns this rank's values under a name.
func (g *Group) Named(name string, ordered bool) (driver.Named, error) {
	if err := g.BeginUse(); err != nil {
		return nil, err
	}
	defer g.EndUse()
	g.Mu.Lock()
	defer g.Mu.Unlock()
	for _, n := range g.named {
		if n.name == name {
			return n, nil
		}
	}
	if err := driver.CheckValueName(name, len(g.named)); err != nil {
		return nil, err
	}
	n := newNamed(g, name, ordered)
	g.named = append(g.named, n)
	return n, nil
}

// Collectives is how many tickets were handed out.
func (g *Group) Collectives() uint64 {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return g.submitted
}

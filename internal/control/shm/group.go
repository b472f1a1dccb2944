package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// Group connects the ranks of a group through a control region (shared memory). It fails with the
// first fault that this rank observes or causes. Then all waits end, and only exchanges of fault
// reports (LaneFault) still work.
//
// The caller runs collectives one at a time, in the order of their tickets (sequence numbers).
type Group struct {
	// These fields are first, so that Ticket uses few cache lines.

	machine *Machine
	ranks
	fault
	// Mu also guards a communicator's fields that change together with its tickets.
	Mu        ranked.Spin[groupMu]
	submitted uint64 // guarded by Mu
	withdrawn bool   // whether new tickets stay unpublished; guarded by Mu
	closed    bool   // guarded by Mu

	steps
	waiter

	Counts

	cfg        driver.GroupConfig
	region     *sys.Mapping
	processors int
	space      uint64 // key space of this group's exports

	lanes     [driver.LaneFault]lane
	faultLogs faultLogs

	namedValues []*namedValue // by number; guarded by Mu
	usersDone   sync.Cond     // uses Mu; signalled when users decreases
	users       int           // exchanges and transfers in progress; guarded by Mu
}

// Join connects this rank to a group. All its ranks must be on this machine and pass the same
// dataBytes (see Data). The group must be closed before the machine.
func (g *Group) Join(
	ctx context.Context, m *Machine, cfg driver.GroupConfig, dataBytes int64,
) error {
	n := len(cfg.Ranks)
	if n < 1 || n > MaxRanks || cfg.Rank < 0 || cfg.Rank >= n {
		return fmt.Errorf("rank %d of %d ranks: shared memory connects from 1 to %d ranks",
			cfg.Rank, n, MaxRanks)
	}

	cfg = cfg.WithTimeout(m.cfg.Timeout)
	ctx, cancel := control.WithDefaultTimeout(ctx, cfg.Timeout.Get())
	defer cancel()
	g.machine, g.cfg = m, cfg
	g.ranks.cfg, g.ranks.peers = &g.cfg, make([]*peer, n)
	g.steps.ranks, g.steps.waiter, g.steps.counts = &g.ranks, &g.waiter, &g.Counts
	g.waiter.ranks, g.waiter.fault, g.waiter.machine, g.waiter.mu = &g.ranks, &g.fault, m, &g.Mu
	g.Counts.group = &g.cfg
	g.space = handoff.NamespaceOf("group/" + cfg.ID)
	g.fault.done = make(chan struct{})
	g.usersDone.L = &g.Mu
	g.faultLogs.absent, g.faultLogs.slotsRead = make([]bool, n), make([]uint64, n)
	if err := g.join(ctx, dataBytes); err != nil {
		return errors.Join(err, g.Release())
	}

	return nil
}

// Processors counts the processors on which any rank may run.
func (g *Group) Processors() int { return g.processors }

// Data returns the region's memory for data. It may be accessed between BeginUse and EndUse, or by
// the goroutine that will call Release.
func (g *Group) Data() unsafe.Pointer {
	return unsafe.Add(g.region.Base(), blocksSize(len(g.blocks)))
}

// Fetch returns an exported file. It returns a driver.RankLostError if the rank's process has
// exited, and a driver.TimeoutError if the rank does not answer before the deadline of ctx. After a
// TimeoutError the caller must make the group fail: until then, the errors of waiting ranks name
// both this rank and the one that does not answer.
func (g *Group) Fetch(
	ctx context.Context, rank int, key handoff.Key, callText string,
) (*os.File, error) {
	p, begin := g.peers[rank], time.Now()
	end := g.NoteFetch(rank)
	f, err := p.Fetch(ctx, key)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && !p.isExited.Load():
		return nil, control.UnansweredError(ctx, g.cfg, rank, callText, begin)
	case err != nil && p.hasExited():
		err = &driver.RankLostError{Ranks: []int{p.rank}, InCall: callText}
	}

	end()
	return f, err
}

var _ control.FetchNoter = (*Group)(nil)

// NoteFetch implements control.FetchNoter.
func (g *Group) NoteFetch(rank int) (end func()) {
	if g.BeginUse() != nil {
		return func() {}
	}

	defer g.EndUse()
	b, word := &g.ownBlock.status, uint64(rank+1)
	spin.StoreRelease64(&b.fetchSince, sys.Monotonic())
	spin.StoreRelease64(&b.fetch, word)
	return func() {
		if g.BeginUse() == nil {
			atomic.CompareAndSwapUint64(&b.fetch, word, 0)
			g.EndUse()
		}
	}
}

// Abort makes the group fail on all ranks.
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

// CheckPeers makes the group fail if a peer has failed or is lost.
func (g *Group) CheckPeers() {
	if g.fault.set.Load() || g.BeginUse() != nil {
		return
	}

	defer g.EndUse()
	if g.peerFailed() || len(g.lostPeers()) > 0 {
		states := g.rankStates(&slowWait{})
		g.fail(control.PeerFaultError(g.cfg, states, "between calls of group "+g.cfg.Name()))
	}
}

// Fail records the first fault, wakes the peers, and returns err as a fault.
func (g *Group) Fail(err error) error {
	if g.BeginUse() != nil {
		return err
	}

	defer g.EndUse()
	return g.fail(err)
}

func (g *Group) fail(err error) error {
	err = g.cfg.Fault(err)
	if g.fault.record(err) {
		atomic.StoreUint32(&g.ownBlock.wakeup.failed, uint32(control.ReasonOf(err)))
		g.wakeAll()
	}

	return err
}

// BeginUse registers a user of the region. It fails if this rank has left the group.
func (g *Group) BeginUse() error {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.closed {
		return fmt.Errorf("group %s: %w", g.cfg.Name(), driver.ErrClosed)
	}

	g.users++
	return nil
}

// EndUse undoes BeginUse.
func (g *Group) EndUse() {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.users--
	g.usersDone.Broadcast()
}

// Closed reports whether this rank has left the group. The caller must hold Mu.
func (g *Group) Closed() bool { return g.closed }

// LeaveGroup waits until the region has no users, and returns the last ticket. Later calls return
// false.
func (g *Group) LeaveGroup() (lastTicket uint64, hasLeft bool) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if g.closed {
		return 0, false
	}

	g.closed = true
	g.fault.record(g.cfg.Fault(fmt.Errorf("group %s: %w", g.cfg.Name(), driver.ErrClosed)))
	spin.StoreRelease64(&g.ownBlock.status.closed, 1)
	g.wakeAll()
	for g.users > 0 {
		g.usersDone.Wait()
	}

	return g.submitted, true
}

// Release unmaps the region, which must have no users.
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

var _ driver.Values = (*Group)(nil)

// Named implements driver.Values.
func (g *Group) Named(name string, isOrdered bool) (driver.Named, error) {
	if err := g.BeginUse(); err != nil {
		return nil, err
	}

	defer g.EndUse()
	g.Mu.Lock()
	defer g.Mu.Unlock()
	for _, n := range g.namedValues {
		if n.name == name {
			return n, nil
		}
	}

	if err := driver.CheckValueName(name, len(g.namedValues)); err != nil {
		return nil, err
	}

	n := newNamedValue(g, name, isOrdered)
	g.namedValues = append(g.namedValues, n)
	return n, nil
}

// Collectives returns the number of tickets so far.
func (g *Group) Collectives() uint64 {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return g.submitted
}

// Ticket allocates and publishes the next ticket. The caller must hold Mu.
func (g *Group) Ticket() uint64 {
	g.submitted++
	spin.Publish64((*atomic.Uint64)(unsafe.Pointer(&g.ownBlock.status.submitted)), g.submitted)
	return g.submitted
}

// LastTicket is like Collectives. The caller must hold Mu.
func (g *Group) LastTicket() uint64 { return g.submitted }

var (
	_ driver.EndObserver = (*Group)(nil)
	_ driver.Inspector   = (*Group)(nil)
)

// Inspect describes this rank's slow waits and the activity of other ranks.
func (g *Group) Inspect() driver.Inspection {
	if g.BeginUse() != nil {
		return driver.Inspection{}
	}

	defer g.EndUse()
	return g.inspect()
}

// EndedRanks lists world ranks whose processes exited before they left the group. It does so
// even before the goroutines that watch processes notice the exit.
func (g *Group) EndedRanks() []int {
	if g.BeginUse() != nil {
		return nil
	}

	defer g.EndUse()
	return g.cfg.World(slices.DeleteFunc(g.OtherRanks(), func(r int) bool {
		// A rank may leave and exit between the two checks, so the order matters.
		return !sys.HasEnded(g.peers[r].Watch()) || g.HasLeft(r)
	}))
}

// Departed lists the world ranks that are lost, and those that left the group.
func (g *Group) Departed() (lostRanks, leftRanks []int) {
	if g.BeginUse() != nil {
		return nil, nil
	}

	defer g.EndUse()
	return control.Departed(g.cfg, g.rankStates(&slowWait{}))
}

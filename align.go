package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/alloc"
	"symmem/internal/ranked"
)

// aligner realigns a group's pools after a fault, so that all ranks again place buffers
// identically. This is necessary because one rank may have made calls that another rank never made.
// A rank that detects a fault marks the pools suspect. Before the ranks next compare the history of
// a suspect pool, they realign the pool; see docs/design/faults.md.
type aligner struct {
	roster
	rt         *Runtime
	comm       driver.Communicator
	life       *lifetime
	comparison *comparison
}

// suspicion records whether a pool is suspect, which means that it may place buffers differently on
// other ranks. mu guards the fields from raised on.
type suspicion struct {
	mu       *ranked.Spin[poolMu]
	domain   *Group
	isRaised bool // the pool is suspect
	// failedGroups holds the groups whose faults made the pool suspect.
	failedGroups map[*lifetime]bool
	// alignedRanks lists the world ranks with which this rank has realigned the pool.
	alignedRanks []int
	// blocksBeforeFault lists the blocks that were live when raised was set. These blocks are the
	// same on all ranks.
	blocksBeforeFault []alloc.View
	rebuilds          int // number of realignments; each one drops all reservations
	// outsideGroups holds the full ids of groups that use the pool and have ranks outside the
	// pool's domain.
	outsideGroups map[string]bool
}

// raisedFor reports whether the pool may place buffers differently on other ranks of g. The caller
// must hold mu.
func (s *suspicion) raisedFor(g *roster) bool {
	return s.isRaised && slices.ContainsFunc(g.ranks, func(r int) bool {
		return r != g.ranks[g.rank] && !slices.Contains(s.alignedRanks, r)
	})
}

func (s *suspicion) isSuspectFor(g *roster) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raisedFor(g)
}

func (s *suspicion) isSuspectForAny() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isRaised
}

func (s *suspicion) rebuildCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rebuilds
}

func (s *suspicion) addOutsideGroup(g *roster) {
	if s.domain == nil || s.domain.contains(g) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outsideGroups == nil {
		s.outsideGroups = map[string]bool{}
	}
	s.outsideGroups[g.full] = true
}

func (s *suspicion) isAffectedBy(g *roster) bool {
	if s.domain == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.domain.contains(g) || s.outsideGroups[g.full]
}

// noteRealigned records that the ranks of g have realigned the pool. The caller must hold mu.
func (s *suspicion) noteRealigned(g *roster) {
	s.rebuilds++
	for failedGroup := range s.failedGroups {
		if failedGroup.fault.Load() == faultRepaired {
			delete(s.failedGroups, failedGroup)
		}
	}
	switch {
	case len(s.failedGroups) > 0: // the pool stays suspect because of another fault
	case g.contains(&s.domain.roster):
		s.isRaised, s.alignedRanks, s.blocksBeforeFault = false, nil, nil
	default:
		s.alignedRanks = slices.Clone(g.ranks)
	}
}

// alignedCall describes a call that realigns pools if necessary and then compares histories.
type alignedCall struct {
	tag string // identifies the operation, to detect ranks that make different calls
	// A pool is realigned if it is suspect on some rank, or if that rank's needsAlign returns true.
	pools      []*Pool
	needsAlign func(*Pool) bool          // set to nil after a realignment
	ledgers    func() []agreement.Ledger // returns the histories to compare
}

// maxRealignments limits the realignments in a call. Several are needed only if other goroutines
// change the pools concurrently.
const maxRealignments = 3

// realignFlag is a flag of an agreement. A rank that sets it requests a realignment.
const realignFlag = 1

// alignAndCompare realigns pools if some rank requests it, and compares histories. The caller must
// hold Group.mu.
func (a *aligner) alignAndCompare(ctx context.Context, c *alignedCall) error {
	for range maxRealignments {
		if err := a.life.cause(ctx); err != nil {
			return err
		}
		config := agreement.Config{Mode: agreement.ModeExact, Tag: c.tag, Ledgers: c.ledgersToCompare()}
		if slices.ContainsFunc(c.pools, func(p *Pool) bool { return c.shouldAlign(&a.roster, p) }) {
			config.Flags = realignFlag
		}
		outcome, err := a.comparison.run(ctx, a.comparison.exchangeOn(driver.LaneControl), config)
		if err != nil {
			return a.life.awaitFault(err)
		}
		switch {
		case outcome.Flags != 0:
		case len(config.Ledgers) == 0 && a.rt.Check() == CheckOff:
			return a.divergence(outcome)
		default:
			return a.comparison.recordOutcome(outcome)
		}
		if err := a.realign(ctx, c); err != nil {
			return a.life.awaitFault(err)
		}
		c.needsAlign = nil // it may return true forever, for example while a graph uses the memory
	}
	if err := a.comparison.agree(ctx, c.tag, c.ledgersToCompare()...); err != nil {
		return err // the histories differ, for example because some rank lacks a pool
	}
	return &realignError{fmt.Errorf("group %s: realigning pools after a fault: other goroutines "+
		"keep changing the pools; repeat the call once they have stopped", a.id)}
}

func (c *alignedCall) ledgersToCompare() []agreement.Ledger {
	if c.ledgers == nil {
		return nil
	}
	return c.ledgers()
}

func (c *alignedCall) shouldAlign(g *roster, p *Pool) bool {
	return p.suspicion.isSuspectFor(g) || c.needsAlign != nil && c.needsAlign(p)
}

// realignError reports why pools could not be realigned. All ranks return it, and the group
// remains usable.
type realignError struct{ error }

func (e *realignError) Unwrap() error { return e.error }

// leavesMemoryUnused reports whether a pool leaves memory unused because, at a realignment, only
// some ranks were using this memory.
func leavesMemoryUnused(p *Pool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.HasKept()
}

func (a *aligner) hasSuspectPools() bool {
	return slices.ContainsFunc(a.comparison.pools(), func(p *Pool) bool {
		return p.suspicion.isSuspectFor(&a.roster)
	})
}

// realignNewGroup realigns the pools of a new group if hasSuspectPools is true, which must be the
// same on all ranks. If the realignment fails, the first call that uses the pools tries again.
func (a *aligner) realignNewGroup(ctx context.Context, hasSuspectPools bool) error {
	if !hasSuspectPools {
		return nil
	}
	err := a.realign(ctx, &alignedCall{pools: a.comparison.pools()})
	if errors.As(err, new(*realignError)) {
		return nil
	}
	return err
}

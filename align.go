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

// aligner makes the ranks of a group place buffers identically again after a fault (an error that
// makes a group fail). When a group fails, one rank may have made requests that another rank never
// makes. A fault therefore marks pools suspect. The ranks realign suspect pools before they next
// compare histories (the pools' lists of requests).
type aligner struct {
	roster
	rt         *Runtime
	comm       driver.Communicator
	life       *lifetime
	comparison *comparison
}

// suspicion records whether a pool is suspect: after a fault, it may place buffers differently on
// other ranks. mu guards the fields from isRaised on.
type suspicion struct {
	mu *ranked.Spin[poolMu]
	// domain is the group whose ranks make the same requests to the pool; nil if there is none.
	domain       *Group
	isRaised     bool               // the pool is suspect
	failedGroups map[*lifetime]bool // a set; the faults of these groups made the pool suspect
	alignedRanks []int              // world ranks with which this rank has realigned the pool since
	// blocksBeforeFault lists the blocks that were live when isRaised was set.
	blocksBeforeFault []alloc.View
	// rebuilds counts the realignments. Each of them drops all reservations of memory.
	rebuilds int
	// outsideGroups contains the full ids of groups that use the pool but have ranks outside its
	// domain.
	outsideGroups map[string]bool
}

// isRaisedFor reports whether the pool is suspect for a group: it is suspect, and this rank has not
// yet realigned it with some other rank of the group. The caller must hold mu.
func (s *suspicion) isRaisedFor(g *roster) bool {
	if !s.isRaised {
		return false
	}

	ownRank := g.ranks[g.rank]
	return slices.ContainsFunc(g.ranks, func(rank int) bool {
		return rank != ownRank && !slices.Contains(s.alignedRanks, rank)
	})
}

// isSuspectFor is isRaisedFor for callers that do not hold mu.
func (s *suspicion) isSuspectFor(g *roster) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isRaisedFor(g)
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

// addOutsideGroup records that a group uses the pool, if some rank of the group is outside the
// pool's domain.
func (s *suspicion) addOutsideGroup(g *roster) {
	if s.domain == nil || s.domain.contains(g) {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outsideGroups == nil {
		s.outsideGroups = map[string]bool{}
	}

	s.outsideGroups[g.fullID] = true
}

// isAffectedBy reports whether a fault of a group makes the pool suspect.
func (s *suspicion) isAffectedBy(g *roster) bool {
	if s.domain == nil {
		return false
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	return s.domain.contains(g) || s.outsideGroups[g.fullID]
}

// recordRealigned records that a group has realigned the pool. The caller must hold mu.
func (s *suspicion) recordRealigned(g *roster) {
	s.rebuilds++
	for failedGroup := range s.failedGroups {
		if failedGroup.fault.Load() == faultRepaired {
			delete(s.failedGroups, failedGroup)
		}
	}

	if len(s.failedGroups) > 0 {
		return // another fault, not yet repaired, keeps the pool suspect
	}

	isWholeDomain := g.contains(&s.domain.roster)
	if isWholeDomain {
		s.isRaised = false
		s.alignedRanks, s.blocksBeforeFault = nil, nil
	} else {
		s.alignedRanks = slices.Clone(g.ranks)
	}
}

// alignedCall is a call of all ranks of a group that compares histories of pools.
type alignedCall struct {
	tag string // names the call, so that the comparison fails if ranks make different calls
	// pools lists the pools that the call may realign. It realigns those that some rank suspects, and
	// those for which needsAlign returns true on some rank.
	pools      []*Pool
	needsAlign func(*Pool) bool          // may be nil; set to nil after a realignment
	ledgers    func() []agreement.Ledger // returns the histories to compare; may be nil
}

// maxRealignments limits the realignments in a call. More than one is needed only if other
// goroutines change the pools concurrently.
const maxRealignments = 3

// realignFlag in agreement.Config.Flags asks all ranks for a realignment. It is the only flag.
const realignFlag = 1

// alignAndCompare compares histories of pools, after the ranks have realigned the pools that need
// it. One comparison does both: if some rank sets realignFlag, all ranks realign the pools and
// compare again. The caller must hold Group.mu.
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

		isRealignAsked := outcome.Flags != 0 // by some rank
		if !isRealignAsked {
			hasCompared := len(config.Ledgers) > 0 || a.rt.Check() != CheckOff
			if hasCompared {
				return a.comparison.recordOutcome(outcome)
			}

			return a.divergence(outcome) // it does not make the group fail, and nothing is recorded
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
	if p.suspicion.isSuspectFor(g) {
		return true
	}

	return c.needsAlign != nil && c.needsAlign(p)
}

// realignError is the reason why pools could not be realigned. It does not make the group fail.
// All ranks return the same one.
type realignError struct{ error }

func (e *realignError) Unwrap() error { return e.error }

// leavesMemoryUnused reports whether the pool cannot allocate some of its memory, because an
// earlier realignment has withdrawn memory that only some ranks were using.
func leavesMemoryUnused(p *Pool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.HasKeptMemory()
}

func (a *aligner) hasSuspectPools() bool {
	return slices.ContainsFunc(a.comparison.pools(), func(p *Pool) bool {
		return p.suspicion.isSuspectFor(&a.roster)
	})
}

// realignNewGroup realigns the pools of a new group if hasSuspectPools is true. hasSuspectPools
// must be the same on all ranks. realignNewGroup ignores a realignError, because the first call
// that uses the pools tries again.
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

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

// aligner realigns the pools of a group, which may differ between its ranks after a fault.
//
// A pool places buffers depending on its history: the list of all requests to it. The ranks of the
// pool's domain (a group) must make the same requests. They compare histories to find mistakes.
// A fault is an error that ends a group. It can reach ranks at different points of a correct
// program: for example, rank 0 still allocates 1 MiB, but rank 1 returns early with the fault. Even
// after rank 0 has freed the buffer, the histories differ, and the next buffer can lie at offset
// 1 MiB on rank 0 and at offset 0 on rank 1. A fault therefore makes pools suspect. Before ranks
// compare the history of a suspect pool, they realign the pool: they give it the same layout and
// start a new history. This repairs the faults that the ranks have seen. If the domain also has a
// rank 2, a realignment by ranks 0 and 1 leaves the pool suspect for groups that contain rank 2.
type aligner struct {
	roster                         // the group: its world ranks, and this rank's number in it
	rt         *Runtime            // this rank's pools and settings
	comm       driver.Communicator // connects the ranks of the group
	life       *lifetime           // whether the group has ended
	comparison *comparison         // compares histories
}

// suspicion records for which groups a pool is suspect.
type suspicion struct {
	domain *Group // nil if the pool has none; it is then never suspect
	// mu is the pool's lock, which guards the fields below. (Package ranked checks in which order a
	// goroutine acquires locks.)
	mu *ranked.Spin[poolMu]
	// outsideGroups is a set, by fullID: groups that use the pool but have ranks outside its domain.
	outsideGroups map[string]bool
	suspect       bool               // for at least one group
	failedGroups  map[*lifetime]bool // a set, by lifetime: their faults made the pool suspect
	// blocksBeforeFault lists the memory of the buffers that existed when the pool became suspect.
	// These buffers have the same offsets on all ranks.
	blocksBeforeFault []alloc.View
	// realignedRanks lists the world ranks of the group that realigned the pool last. It is empty if
	// there was no realignment since the latest markSuspect, or if the pool is not suspect.
	realignedRanks []int
	realignments   int // number of realignments so far
}

// addOutsideGroup records that a group uses the pool, unless the domain contains all its ranks.
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
	isInsideDomain := s.domain.contains(g)
	return isInsideDomain || s.outsideGroups[g.fullID]
}

// markSuspect makes the pool suspect for all groups. failedGroup is the group whose fault is the
// reason, or nil during a realignment, which makes the pool suspect until it succeeds. If the fault
// has been repaired, markSuspect does nothing and returns false. The caller must hold mu.
func (s *suspicion) markSuspect(failedGroup *lifetime, liveBlocks func() []alloc.View) bool {
	if failedGroup != nil {
		if isRepaired(failedGroup) {
			return false
		}

		if s.failedGroups == nil {
			s.failedGroups = map[*lifetime]bool{}
		}

		s.failedGroups[failedGroup] = true
	}

	if !s.suspect {
		s.blocksBeforeFault = liveBlocks()
	}

	s.suspect = true
	s.realignedRanks = nil
	return true
}

func isRepaired(failed *lifetime) bool { return failed.faultState.Load() == faultRepaired }

// isSuspect reports whether the pool is suspect for at least one group.
func (s *suspicion) isSuspect() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspect
}

// isSuspectFor reports whether the pool is suspect for a group.
func (s *suspicion) isSuspectFor(g *roster) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isSuspectForLocked(g)
}

// isSuspectForLocked is isSuspectFor for callers that hold mu.
func (s *suspicion) isSuspectForLocked(g *roster) bool {
	if !s.suspect {
		return false
	}

	ownRank := g.ranks[g.rank]
	for _, rank := range g.ranks {
		if rank != ownRank && !slices.Contains(s.realignedRanks, rank) {
			return true // this rank has not realigned the pool with that rank
		}
	}

	return false
}

// recordRealigned records that a group has realigned the pool. The caller must hold mu. The faults
// that the realignment has repaired must already be recorded as repaired.
func (s *suspicion) recordRealigned(g *roster) {
	s.realignments++
	for failedGroup := range s.failedGroups {
		if isRepaired(failedGroup) {
			delete(s.failedGroups, failedGroup)
		}
	}

	hasNewFault := len(s.failedGroups) > 0 // this rank has seen it since the realignment began
	if hasNewFault {
		return // the pool stays suspect, even for this group
	}

	isWholeDomain := g.contains(&s.domain.roster) // the group contains all ranks of the domain
	if isWholeDomain {
		s.suspect = false
		s.blocksBeforeFault, s.realignedRanks = nil, nil
	} else {
		s.realignedRanks = slices.Clone(g.ranks) // only they have the new layout
	}
}

// realignmentCount returns how often the pool was realigned, which drops its reserved memory.
func (s *suspicion) realignmentCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.realignments
}

// sharedCall is a call that all ranks of a group make together, such as Pool.Trim.
type sharedCall struct {
	tag   string  // the name of the call; it differs if ranks make different calls
	pools []*Pool // the pools to realign, if they are suspect on some rank
	// extraReason reports whether to realign a pool even if it is not suspect. It may be nil. For
	// example, Pool.Trim realigns a pool to free memory that an earlier realignment could not free.
	extraReason func(*Pool) bool
	// histories returns the histories to compare. (agreement.Ledger is the type of a history.) It
	// may be nil.
	histories func() []agreement.Ledger
}

// withoutExtraReason returns a copy of the call for use after a realignment. The extra reason may
// still apply then: for example, a CUDA graph may use the memory that Pool.Trim wants to free.
func (c *sharedCall) withoutExtraReason() *sharedCall {
	remaining := *c
	remaining.extraReason = nil
	return &remaining
}

// mustRealign reports whether this rank needs a realignment of p, a pool of the call.
func (c *sharedCall) mustRealign(g *roster, p *Pool) bool {
	return p.suspicion.isSuspectFor(g) || (c.extraReason != nil && c.extraReason(p))
}

func (c *sharedCall) historiesToCompare() []agreement.Ledger {
	if c.histories == nil {
		return nil
	}

	return c.histories()
}

// realignError is the reason why pools could not be realigned. All ranks return the same one. The
// group does not fail, and the pools stay suspect on some ranks.
type realignError struct{ error }

func (e *realignError) Unwrap() error { return e.error }

// maxRealignments limits the realignments in a call. A second one is needed only if other
// goroutines change the pools during the first.
const maxRealignments = 3

// realignAndCompare realigns the call's pools if necessary, and then compares histories. If ranks
// make different calls, or histories differ, it returns an error. The caller must hold Group.mu.
func (a *aligner) realignAndCompare(ctx context.Context, c *sharedCall) error {
	for range maxRealignments {
		if err := a.life.cause(ctx); err != nil {
			return err // the group has ended
		}

		mustRealign, err := a.compareOrAsk(ctx, c)
		if err != nil || !mustRealign {
			return err
		}

		if err := a.realign(ctx, c); err != nil {
			return a.life.awaitFault(err) // if it is a fault: the cause that all ranks agree on
		}

		c = c.withoutExtraReason()
	}

	// The ranks cannot realign a pool that some rank lacks. If histories are compared, the following
	// comparison then fails, and its error names the pool.
	if err := a.comparison.agree(ctx, c.tag, c.historiesToCompare()...); err != nil {
		return err
	}

	return &realignError{fmt.Errorf("group %s: realigning pools after a fault: other goroutines "+
		"keep changing the pools; repeat the call once they have stopped", a.id)}
}

// realignFlag in agreement.Config.Flags asks all ranks for a realignment. A comparison passes it on
// to all ranks, and then compares only tags. There is no other flag.
const realignFlag = 1

// compareOrAsk compares histories, or asks all ranks for a realignment if this rank needs one. If
// some rank has asked, mustRealign is true on all ranks, and no histories have been compared.
func (a *aligner) compareOrAsk(ctx context.Context, c *sharedCall) (mustRealign bool, err error) {
	// In ModeExact, the complete histories must be equal.
	config := agreement.Config{Mode: agreement.ModeExact, Tag: c.tag, Ledgers: c.historiesToCompare()}
	isNeededHere := slices.ContainsFunc(c.pools, func(p *Pool) bool {
		return c.mustRealign(&a.roster, p)
	})
	if isNeededHere {
		config.Flags = realignFlag
	}

	exchange := a.comparison.exchangeOn(driver.LaneControl)
	outcome, err := a.comparison.run(ctx, exchange, config)
	if err != nil {
		return false, a.life.awaitFault(err)
	}

	isNeededSomewhere := outcome.Flags != 0
	if isNeededSomewhere {
		return true, nil
	}

	isUnchecked := len(config.Ledgers) == 0 && a.rt.Check() == CheckOff
	if isUnchecked {
		// If ranks make different calls, only these calls fail, because the program wants no checks.
		// The group stays usable.
		return false, a.divergence(outcome)
	}

	return false, a.comparison.recordOutcome(outcome) // the group fails if there is a difference
}

// hasSuspectPools reports whether a pool is suspect for the group on this rank.
func (a *aligner) hasSuspectPools() bool {
	return slices.ContainsFunc(a.comparison.pools(), func(p *Pool) bool {
		return p.suspicion.isSuspectFor(&a.roster)
	})
}

// realignNewGroup realigns the pools of a new group if mustRealign is true. mustRealign must be the
// same on all ranks: whether hasSuspectPools is true on some rank. After a realignError, the next
// call that uses the pools tries again, so realignNewGroup returns nil.
func (a *aligner) realignNewGroup(ctx context.Context, mustRealign bool) error {
	if !mustRealign {
		return nil
	}

	err := a.realign(ctx, &sharedCall{pools: a.comparison.pools()})
	var postponed *realignError
	if errors.As(err, &postponed) {
		return nil
	}

	return err
}

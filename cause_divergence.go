package symmem

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"symmem/driver"
	"symmem/internal/agreement"
)

// Suppose that ranks 0 and 1 call AllReduce, rank 2 calls Barrier, and rank 3 is late. Ranks 0 to 2
// decide on a DivergenceError that has a side for each call, and lists rank 3 as absent. When rank
// 3 arrives, it adopts the error, and adds a side for its own call to its copy.

// divergedCause is selectCause after a report of kindDiverged.
func (inq *inquiry) divergedCause(cause error, all *reports) error {
	areCallsKnown := !all.callUnknown && len(all.missingRanks) == 0
	err := inq.explainDivergence(cause, areCallsKnown, all.suspect)
	foundDifference := !errors.Is(err, cause)
	if foundDifference {
		return all.addAdvice(all.preferComplete(err))
	}

	diverged := all.byKind[kindDiverged]
	elsewhere := map[int]string{}
	for _, r := range diverged {
		if r.Deadlock != nil {
			maps.Copy(elsewhere, r.Deadlock.Activity)
		}
	}

	if len(elsewhere) == 0 {
		return cause
	}

	if len(all.lostRanks) > 0 {
		return &RankLostError{
			Ranks: all.lostRanks, InCall: diverged[0].InCall, Members: inq.ranks,
		}
	}

	return all.addAdvice(&DeadlockError{
		InCall: diverged[0].InCall, Activity: elsewhere, Members: inq.ranks,
	})
}

// explainDivergence compares the histories of the pools and the current collective across ranks. If
// areCallsKnown is true, it also compares the ranks' calls. It returns the first difference as a
// DivergenceError. If it finds none, it returns an error that wraps cause.
func (inq *inquiry) explainDivergence(cause error, areCallsKnown, hasSuspectPool bool) error {
	comparisons := []agreement.Config{
		inq.callComparison(cause),
		{Mode: agreement.ModeExact}, // also finds events that only some ranks have recorded
	}
	if areCallsKnown {
		comparisons = append(comparisons,
			agreement.Config{Mode: agreement.ModeExact, Tag: inq.describeCall(cause)})
	}

	for _, config := range comparisons {
		ledgers, err := inq.comparableHistories(config.Mode, hasSuspectPool)
		if err != nil {
			return errors.Join(cause, err)
		}

		config.Ledgers = ledgers
		outcome, err := inq.comparison.run(context.Background(), inq.exchangeReports, config)
		if err != nil && config.CallDiffers { // cause shows the difference without the other ranks
			outcome, err = inq.comparison.run(context.Background(), inq.exchangeAlone, config)
		}

		if err != nil {
			return errors.Join(cause, err)
		}

		if err := inq.divergence(outcome); err != nil {
			return err
		}
	}

	return cause
}

// callComparison configures a comparison of the events that all ranks have recorded and, if cause
// is a MismatchError, of the call.
func (inq *inquiry) callComparison(cause error) agreement.Config {
	call := inq.calls.mismatchedCall(cause)
	return agreement.Config{
		Mode: agreement.ModePrefix, Call: call, CallDiffers: call != nil,
		Site: inq.calls.latestSite(),
	}
}

// describeCall describes the failed call and the program's step, if set by Group.Step.
func (inq *inquiry) describeCall(cause error) string {
	text := reportOf(cause).InCall + inq.values.describeStep()
	return text[:min(len(text), agreement.MaxTag)]
}

// comparableHistories returns the histories to compare. If a pool is suspect, it returns none: the
// histories may then differ in a correct program.
func (inq *inquiry) comparableHistories(
	mode agreement.Mode, hasSuspectPool bool,
) ([]agreement.Ledger, error) {
	if hasSuspectPool {
		return nil, nil
	}

	if mode == agreement.ModePrefix {
		return inq.comparison.sharedHistories(context.Background(), inq.exchangeReports)
	}

	return inq.comparison.histories(), nil
}

// exchangeAlone is an agreement.Exchange in which all other ranks are absent.
func (inq *inquiry) exchangeAlone(_ context.Context, payload []byte) ([][]byte, error) {
	payloads := make([][]byte, len(inq.ranks))
	payloads[inq.rank] = payload
	return payloads, nil
}

// preferComplete returns err or, if err is a DivergenceError with absent ranks, a reported
// DivergenceError without absent ranks.
func (all *reports) preferComplete(err error) error {
	var d *DivergenceError
	isIncomplete := errors.As(err, &d) && len(d.Absent) > 0
	if !isIncomplete {
		return err
	}

	for _, r := range all.byKind[kindDiverged] {
		isComplete := r.Divergence != nil && len(r.Divergence.Absent) == 0
		if isComplete {
			return r.Divergence
		}
	}

	return err
}

// adopt returns the cause that other ranks have decided on. If it is a DivergenceError that lists
// this rank as absent, adopt adds this rank's side to a copy.
func (inq *inquiry) adopt(ownCause error, decision []byte) error {
	decided := decodeCause(ownCause, decision)
	var divergence *DivergenceError
	wasAbsent := errors.As(decided, &divergence) &&
		slices.Contains(divergence.Absent, inq.worldRank())
	if !wasAbsent {
		return decided
	}

	own, ownErr := inq.ownSide(ownCause, divergence)
	if ownErr != nil {
		return decided // this rank's side is unknown
	}

	completed := *divergence
	completed.addSide(own)
	rankName := driver.RanksOf(own.Ranks, inq.ranks)
	completed.Message = fmt.Sprintf("%s; %s, which was late, has %q", decided, rankName, own.Event)
	if own.Site != "" {
		completed.Message += " at " + own.Site
	}

	return &completed
}

func (inq *inquiry) worldRank() int { return inq.ranks[inq.rank] }

// ownSide returns this rank's side of a divergence: its call, or the event in a pool's history at
// the position where other ranks differ.
func (inq *inquiry) ownSide(ownCause error, d *DivergenceError) (Side, error) {
	config := inq.callComparison(ownCause)
	config.Tag = inq.describeCall(ownCause)
	config.Ledgers = inq.comparison.histories()
	config.Rank = inq.rank
	config.Names = inq.comparison.names()
	variant, err := config.OwnVariant(kindNamed(d.Kind), d.PoolID, d.Position, d.Last)
	if err != nil {
		return Side{}, err
	}

	return Side{Ranks: []int{inq.worldRank()}, Event: variant.Text, Site: variant.Site}, nil
}

// kindNamed returns the kind with the given name, or KindCollective if the name is unknown.
func kindNamed(name DivergenceKind) agreement.Kind {
	const firstKind, lastKind = agreement.KindTag, agreement.KindCollective
	for kind := firstKind; kind <= lastKind; kind++ {
		if kind.String() == string(name) {
			return kind
		}
	}

	return agreement.KindCollective
}

// addSide adds the side of one absent rank. It copies the slices of d before it changes them,
// because other errors can share them.
func (d *DivergenceError) addSide(added Side) {
	rank := added.Ranks[0]
	d.Absent = slices.DeleteFunc(slices.Clone(d.Absent), func(r int) bool { return r == rank })
	d.Sides = slices.Clone(d.Sides)
	i := slices.IndexFunc(d.Sides, func(s Side) bool { return s.Event == added.Event })
	if i >= 0 {
		d.Sides[i].Ranks = sortedWith(d.Sides[i].Ranks, rank)
	} else {
		d.Sides = append(d.Sides, added)
	}

	majority, hasMajority := d.majority()
	if hasMajority && majority.Event != added.Event {
		d.Deviant = sortedWith(d.Deviant, rank)
	}
}

// majority returns the side with more than half of the present ranks, if there is one.
func (d *DivergenceError) majority() (side Side, found bool) {
	presentRanks := len(d.Members) - len(d.Absent)
	for _, side := range d.Sides {
		if len(side.Ranks) > presentRanks/2 {
			return side, true
		}
	}

	return Side{}, false
}

func sortedWith(ranks []int, rank int) []int {
	all := append(slices.Clone(ranks), rank)
	slices.Sort(all)
	return all
}

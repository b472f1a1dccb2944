package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/agreement"
)

// If ranks 0 and 1 call AllReduce, rank 2 calls Barrier and rank 3 is late, the first three ranks
// decide on a DivergenceError with two sides and rank 3 absent. When rank 3 arrives, it adopts the
// decision and adds its own call as a side to its copy of the error.

// adopt returns the cause that other ranks have decided on. If it is a divergence found without
// this rank, adopt adds this rank's side.
func (inq *inquiry) adopt(ownCause error, decision []byte) error {
	err := decisionError(ownCause, decision)
	ownRank := inq.ranks[inq.rank]
	var decided *DivergenceError
	wasAbsent := errors.As(err, &decided) && slices.Contains(decided.Absent, ownRank)
	if !wasAbsent {
		return err
	}

	own, ownErr := inq.ownVariant(ownCause, decided)
	if ownErr != nil {
		return err // without this rank's side, which is unknown
	}

	completed := *decided
	completed.addSide(Side{Ranks: []int{ownRank}, Event: own.Text, Site: own.Site})
	rankName := driver.RanksOf([]int{ownRank}, inq.ranks)
	completed.Message = fmt.Sprintf("%s; %s, which was late, has %q", err, rankName, own.Text)
	if own.Site != "" {
		completed.Message += " at " + own.Site
	}

	return &completed
}

// ownVariant returns this rank's counterpart to the sides of a divergence, such as its call or its
// event at the same position of a pool's history.
func (inq *inquiry) ownVariant(ownCause error, d *DivergenceError) (agreement.Variant, error) {
	config := inq.callComparison(ownCause)
	config.Tag = inq.describeCall(ownCause)
	config.Ledgers = inq.comparison.histories()
	config.Rank = inq.rank
	config.Names = inq.comparison.names()
	return config.OwnVariant(kindNamed(d.Kind), d.PoolID, d.Position, d.Last)
}

// kindNamed returns the kind of divergence with a name, or KindCollective for an unknown name.
func kindNamed(name DivergenceKind) agreement.Kind {
	for kind := agreement.KindTag; kind <= agreement.KindCollective; kind++ {
		if kind.String() == string(name) {
			return kind
		}
	}

	return agreement.KindCollective
}

// callComparison configures a comparison of the call in cause, if there is one, and of the pool
// histories before it.
func (inq *inquiry) callComparison(cause error) agreement.Config {
	call := inq.calls.mismatchedCall(cause)
	return agreement.Config{
		Mode: agreement.ModePrefix, Call: call, Site: inq.calls.latestSite(), CallDiffers: call != nil,
	}
}

// describeCall describes the failed call and the step of the program, if Group.Step has set one.
func (inq *inquiry) describeCall(cause error) string {
	text := reportOf(cause).InCall + inq.values.describeStep()
	return text[:min(len(text), agreement.MaxTag)]
}

// ownPayload stands in for an exchange between the ranks after the real one has failed. It returns
// only this rank's payload, so that all other ranks are absent.
func (inq *inquiry) ownPayload(_ context.Context, payload []byte) ([][]byte, error) {
	payloads := make([][]byte, len(inq.ranks))
	payloads[inq.rank] = payload
	return payloads, nil
}

// completeDivergence replaces a divergence with absent ranks by a complete one, if a rank has
// reported it.
func (all *reports) completeDivergence(err error) error {
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

// addSide adds the side of one absent rank. It clones the slices of d instead of changing them,
// because other errors can share them.
func (d *DivergenceError) addSide(own Side) {
	rank := own.Ranks[0]
	d.Absent = slices.DeleteFunc(slices.Clone(d.Absent), func(r int) bool { return r == rank })
	d.Sides = slices.Clone(d.Sides)
	same := slices.IndexFunc(d.Sides, func(s Side) bool { return s.Event == own.Event })
	if same >= 0 {
		d.Sides[same].Ranks = sortedWith(d.Sides[same].Ranks, rank)
	} else {
		d.Sides = append(d.Sides, own)
	}

	presentRanks := len(d.Members) - len(d.Absent)
	for _, side := range d.Sides {
		isMajority := len(side.Ranks) > presentRanks/2
		if isMajority && side.Event != own.Event { // the new rank deviates from the majority
			d.Deviant = sortedWith(d.Deviant, rank)
		}
	}
}

func sortedWith(ranks []int, rank int) []int {
	all := append(slices.Clone(ranks), rank)
	slices.Sort(all)
	return all
}

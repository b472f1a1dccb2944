package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/agreement"
)

// Suppose that a group with ranks 0 to 3 fails because the ranks 0 and 1 have called AllReduce, and
// rank 2 has called Barrier. To find the cause, the ranks compare their calls. Rank 3 is late, so
// the others compare without it. They decide on a DivergenceError with two sides:
//
//	AllReduce    ranks 0 and 1
//	Barrier      rank 2
//
// It lists rank 3 as absent. When rank 3 arrives, it adopts the decision, and adds its own call as
// a side. The other ranks keep the error without this side.

// adopt returns the cause in the decision of other ranks. If the cause is a divergence that was
// found without this rank, adopt adds this rank's side. ownCause is this rank's own error.
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
		return err // this rank does not know its side
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

// ownVariant returns what this rank has done where the ranks in a divergence differ. For example,
// that is its call, or an event in its history of a pool.
func (inq *inquiry) ownVariant(ownCause error, d *DivergenceError) (agreement.Variant, error) {
	config := inq.callComparison(ownCause)
	config.Tag = inq.describeCall(ownCause)
	config.Ledgers = inq.comparison.histories()
	config.Rank = inq.rank
	config.Names = inq.comparison.names()
	return config.OwnVariant(kindNamed(d.Kind), d.PoolID, d.Position, d.Last)
}

// kindNamed returns the kind of divergence with a name. The kinds are numbered from KindTag to
// KindCollective.
func kindNamed(name DivergenceKind) agreement.Kind {
	for kind := agreement.KindTag; kind < agreement.KindCollective; kind++ {
		if kind.String() == string(name) {
			return kind
		}
	}

	return agreement.KindCollective
}

// callComparison returns the configuration of a comparison of calls, and of the histories of pools
// up to the calls. If cause contains no call, only the histories are compared.
func (inq *inquiry) callComparison(cause error) agreement.Config {
	call := inq.calls.mismatchedCall(cause)
	return agreement.Config{
		Mode: agreement.ModePrefix, Call: call, Site: inq.calls.latestSite(), CallDiffers: call != nil,
	}
}

// describeCall describes the failed call and, if the program has called Group.Step, the step. The
// text has at most MaxTag bytes.
func (inq *inquiry) describeCall(cause error) string {
	text := reportOf(cause).InCall + inq.values.describeStep()
	return text[:min(len(text), agreement.MaxTag)]
}

// ownPayload can replace an exchange in a comparison, to compare without communication. It returns
// only this rank's payload, so that all other ranks are absent.
func (inq *inquiry) ownPayload(_ context.Context, payload []byte) ([][]byte, error) {
	payloads := make([][]byte, len(inq.ranks))
	payloads[inq.rank] = payload
	return payloads, nil
}

// completeDivergence returns a divergence with the sides of all ranks, if err lacks some and a rank
// has reported one. Otherwise, it returns err.
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

// addSide adds the side of one absent rank, which is then not absent any more. It replaces the
// lists of d and does not change them, because other errors can share them.
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
		isMajority := len(side.Ranks) > presentRanks/2 // true for at most one side
		if isMajority && side.Event != own.Event {
			d.Deviant = sortedWith(d.Deviant, rank)
		}
	}
}

// sortedWith returns a sorted copy of ranks to which rank is added.
func sortedWith(ranks []int, rank int) []int {
	all := append(slices.Clone(ranks), rank)
	slices.Sort(all)
	return all
}

package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/agreement"
)

// This file completes a DivergenceError after a fault. To find the cause of a fault, the ranks of a
// group exchange reports (see inquiry). If a rank is late for the exchange, the other ranks compare
// their calls without this rank. The DivergenceError on which they decide then lacks the side of
// the late rank: a Side describes what a rank did.

// callComparison returns the configuration of a comparison after a mismatch of calls. It compares
// the calls, and the histories of pools up to the calls.
func (inq *inquiry) callComparison(cause error) agreement.Config {
	call := inq.calls.mismatchedCall(cause)
	return agreement.Config{
		Mode: agreement.ModePrefix, Call: call, Site: inq.calls.latestSite(), CallDiffers: call != nil,
	}
}

// describeCall describes the failed call and the rank's current step (see Group.Step), in at most
// MaxTag bytes.
func (inq *inquiry) describeCall(cause error) string {
	text := reportOf(cause).InCall + inq.values.describeStep()
	return text[:min(len(text), agreement.MaxTag)]
}

// ownPayload is an agreement.Exchange without communication: all other ranks are absent.
func (inq *inquiry) ownPayload(_ context.Context, payload []byte) ([][]byte, error) {
	payloads := make([][]byte, len(inq.ranks))
	payloads[inq.rank] = payload
	return payloads, nil
}

// completeDivergence returns err, except if err is a divergence without the sides of absent ranks.
// In that case, it returns a divergence with all sides, if some rank has reported one.
func (all *reports) completeDivergence(err error) error {
	var d *DivergenceError
	if !errors.As(err, &d) || len(d.Absent) == 0 {
		return err
	}

	for _, r := range all.byKind[kindDiverged] {
		if r.Divergence != nil && len(r.Divergence.Absent) == 0 {
			return r.Divergence
		}
	}

	return err
}

// adopt returns the cause in a decision of another rank. If the cause is a divergence that was
// found without this rank, adopt adds this rank's side.
func (inq *inquiry) adopt(ownCause error, decision []byte) error {
	err := decisionError(ownCause, decision)
	ownRank := inq.ranks[inq.rank]
	var decided *DivergenceError
	wasAbsent := errors.As(err, &decided) && slices.Contains(decided.Absent, ownRank)
	if !wasAbsent {
		return err
	}

	own, variantErr := inq.ownVariant(ownCause, decided)
	if variantErr != nil {
		return err // without this rank's side, which is unknown
	}

	completed := *decided
	completed.addSide(Side{Ranks: []int{ownRank}, Event: own.Text, Site: own.Site})
	completed.Message = fmt.Sprintf("%s; %s, which was late, has %q", err,
		driver.RanksOf([]int{ownRank}, inq.ranks), own.Text)
	if own.Site != "" {
		completed.Message += " at " + own.Site
	}

	return &completed
}

// ownVariant returns what this rank observed where d describes the observations of other ranks.
func (inq *inquiry) ownVariant(cause error, d *DivergenceError) (agreement.Variant, error) {
	c := inq.callComparison(cause)
	c.Tag, c.Ledgers = inq.describeCall(cause), inq.comparison.histories()
	c.Rank, c.Names = inq.rank, inq.comparison.names()
	// Find the kind with the name d.Kind. The kinds are numbered from KindTag to KindCollective.
	kind := agreement.KindTag
	for kind < agreement.KindCollective && kind.String() != string(d.Kind) {
		kind++
	}

	return c.OwnVariant(kind, d.PoolID, d.Position, d.Last)
}

// addSide adds the side of a rank in Absent, and moves the rank from Absent to Sides. If a
// majority has another event, the rank is also added to Deviant. It changes copies of the lists,
// because other errors can share them.
func (d *DivergenceError) addSide(own Side) {
	rank := own.Ranks[0]
	d.Absent = slices.DeleteFunc(slices.Clone(d.Absent), func(r int) bool { return r == rank })
	d.Sides = slices.Clone(d.Sides)
	sameSide := slices.IndexFunc(d.Sides, func(s Side) bool { return s.Event == own.Event })
	if sameSide < 0 {
		d.Sides = append(d.Sides, own)
	} else {
		side := &d.Sides[sameSide]
		side.Ranks = sortedWith(side.Ranks, rank)
	}

	observingRanks := len(d.Members) - len(d.Absent)
	for _, side := range d.Sides { // at most one has a majority
		isMajority := 2*len(side.Ranks) > observingRanks
		if isMajority && side.Event != own.Event {
			d.Deviant = sortedWith(d.Deviant, rank)
		}
	}
}

// sortedWith returns a sorted copy of ranks and rank.
func sortedWith(ranks []int, rank int) []int {
	all := append(slices.Clone(ranks), rank)
	slices.Sort(all)
	return all
}

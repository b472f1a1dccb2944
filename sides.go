package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/agreement"
)

// This file completes a DivergenceError. If a rank is late for an exchange of reports, the other
// ranks compare without it, and the DivergenceError on which they decide lacks this rank's side.

// callComparison returns the configuration of a comparison of the calls of a mismatch and of the
// histories that have led to the calls.
func (inq *inquiry) callComparison(cause error) agreement.Config {
	call := inq.calls.mismatchedCall(cause)
	return agreement.Config{
		Mode: agreement.ModePrefix, Call: call, Site: inq.calls.latestSite(), CallDiffers: call != nil,
	}
}

// describeCall describes the failed call and the rank's current step, in at most MaxTag bytes.
func (inq *inquiry) describeCall(cause error) string {
	here := reportOf(cause).InCall + inq.values.describeStep()
	return here[:min(len(here), agreement.MaxTag)]
}

// ownPayload is an agreement.Exchange in which all other ranks are absent.
func (inq *inquiry) ownPayload(_ context.Context, payload []byte) ([][]byte, error) {
	payloads := make([][]byte, len(inq.ranks))
	payloads[inq.rank] = payload
	return payloads, nil
}

// completeDivergence returns err. If err is a divergence without the sides of absent ranks and
// some rank has reported a divergence with all sides, it returns the reported divergence instead.
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
func (inq *inquiry) adopt(cause error, decision []byte) error {
	err := decisionError(cause, decision)
	var decided *DivergenceError
	if !errors.As(err, &decided) || !slices.Contains(decided.Absent, inq.ranks[inq.rank]) {
		return err
	}
	own, variantErr := inq.ownVariant(cause, decided)
	if variantErr != nil {
		return err // without this rank's side, which is unknown
	}
	d := *decided
	d.addSide(Side{Ranks: []int{inq.ranks[inq.rank]}, Event: own.Text, Site: own.Site})
	d.Message = fmt.Sprintf("%s; %s, which was late, has %q", err,
		driver.RanksOf([]int{inq.ranks[inq.rank]}, inq.ranks), own.Text)
	if own.Site != "" {
		d.Message += " at " + own.Site
	}
	return &d
}

// ownVariant returns what this rank has in place of the observations in d.
func (inq *inquiry) ownVariant(cause error, d *DivergenceError) (agreement.Variant, error) {
	c := inq.callComparison(cause)
	c.Tag, c.Ledgers = inq.describeCall(cause), inq.comparison.histories()
	c.Rank, c.Names = inq.rank, inq.comparison.names()
	kind := agreement.KindTag
	for kind < agreement.KindCollective && kind.String() != string(d.Kind) {
		kind++
	}
	return c.OwnVariant(kind, d.PoolID, d.Position, d.Last)
}

// addSide adds the side of a rank in Absent, and moves the rank from Absent to Sides. If a
// majority has another event, the rank is also added to Deviant.
func (d *DivergenceError) addSide(own Side) {
	rank := own.Ranks[0]
	d.Absent = slices.DeleteFunc(slices.Clone(d.Absent), func(r int) bool { return r == rank })
	d.Sides = slices.Clone(d.Sides)
	i := slices.IndexFunc(d.Sides, func(s Side) bool { return s.Event == own.Event })
	if i < 0 {
		d.Sides = append(d.Sides, own)
	} else {
		d.Sides[i].Ranks = slices.Sorted(slices.Values(append(slices.Clone(d.Sides[i].Ranks), rank)))
	}
	for _, side := range d.Sides {
		if side.Event != own.Event && 2*len(side.Ranks) > len(d.Members)-len(d.Absent) {
			d.Deviant = slices.Sorted(slices.Values(append(slices.Clone(d.Deviant), rank)))
		}
	}
}

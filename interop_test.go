package symmem_test

import (
	"testing"

	"symmem"
)

func TestCallValuesMatchMethods(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		i, w, me := r.Interop(), r.World(), int64(r.Rank())
		for _, row := range []struct {
			call symmem.ValueCall
			want int64
		}{
			{symmem.ValueCall{Operation: symmem.ValueAgree, Value: 7}, 7},
			{symmem.ValueCall{Operation: symmem.ValueAny, Value: 5 * me}, 1},
			{symmem.ValueCall{Operation: symmem.ValueAll, Value: 5 * me}, 0},
			{symmem.ValueCall{Operation: symmem.ValueAll, Value: 5 + me}, 1},
			{symmem.ValueCall{Operation: symmem.ValueMin, Value: 3 + me}, 3},
			{symmem.ValueCall{Operation: symmem.ValueMax, Value: 3 + me}, 4},
			{symmem.ValueCall{Operation: symmem.ValueSum, Value: 3 + me}, 7},
			{symmem.ValueCall{Operation: symmem.ValueAgreeString, Text: "8 experts"}, 0},
			{symmem.ValueCall{Operation: symmem.ValueStep, Text: "decode"}, 0},
		} {
			row.call.Name = row.call.Operation.String()
			got, err := i.Value(r.ctx, w, row.call)
			r.ok(err)
			if got != row.want {
				r.failf("Value(%+v) = %d, want %d", row.call, got, row.want)
			}
		}
		rate := symmem.ValueCall{Operation: symmem.ValueAgreeFloat, Name: "rate", Float: 0.5}
		_, err := i.Value(r.ctx, w, rate)
		r.ok(err)
		rate.Float += float64(me)
		_, err = i.Value(r.ctx, w, rate)
		r.wantDivergence(err)
		for _, o := range []symmem.ValueOperation{0, symmem.ValueAgreeString + 1} {
			_, err = i.Value(r.ctx, w, symmem.ValueCall{Operation: o, Name: "rate"})
			r.wantErr(err, symmem.ErrInvalid)
		}
		_, err = i.Value(r.ctx, nil, rate)
		r.wantErr(err, symmem.ErrInvalid)
	})
}

// TestNormCallMatchesMethod makes a norm as a Call and as a method, and compares the errors. The
// host has no kernels for norms, so both forms fail there.
func TestNormCallMatchesMethod(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		m := r.unregistered(16)
		a := symmem.NormArgs{
			Input: m, Output: m, Residual: r.unregistered(16), Weight: r.unregistered(16),
			Rows: 1, Hidden: 8,
		}
		want := r.World().AllReduceRMSNorm(r.ctx, a, nil)
		got := r.Interop().Do(r.ctx, r.World(), symmem.Call{
			Operation: symmem.OpAllReduceRMSNorm, Norm: &a,
		}, nil)
		if (got == nil) != (want == nil) || got != nil && got.Error() != want.Error() {
			r.failf("Do returns %v, the method %v", got, want)
		}
		r.synchronize()
	})
}

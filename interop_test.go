package symmem_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"symmem"
)

func TestCallValuesMatchMethods(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		interop, w, me := r.Interop(), r.World(), int64(r.Rank())
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
			got, err := interop.Value(r.ctx, w, row.call)
			r.ok(err)
			if got != row.want {
				r.failf("Value(%+v) = %d, want %d", row.call, got, row.want)
			}
		}
		rate := symmem.ValueCall{Operation: symmem.ValueAgreeFloat, Name: "rate", Float: 0.5}
		_, err := interop.Value(r.ctx, w, rate)
		r.ok(err)
		rate.Float += float64(me) // differs between the ranks
		_, err = interop.Value(r.ctx, w, rate)
		r.wantDivergence(err)
		for _, unknown := range []symmem.ValueOperation{0, symmem.ValueAgreeString + 1} {
			_, err = interop.Value(r.ctx, w, symmem.ValueCall{Operation: unknown, Name: "rate"})
			r.wantErr(err, symmem.ErrInvalid)
		}
		_, err = interop.Value(r.ctx, nil, rate)
		r.wantErr(err, symmem.ErrInvalid)
	})
}

// TestPremulSum checks sums with a factor. Calls with different factors must not share a plan (the
// cached preparation of a call).
func TestPremulSum(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		send, err := r.window(p, 4096).Memory().Slice(0, 8)
		r.ok(err)
		recv, err := r.window(p, 4096).Memory().Slice(0, 8)
		r.ok(err)
		for _, factor := range []float64{0.5, -0.25, 0.5} {
			const unchanged, root = -1, 1
			f := float32(factor)
			sums := []float32{3 * f, 4 * f}
			parts := [][]float32{{3 * f, unchanged}, {4 * f, unchanged}} // by rank
			atRoot := [][]float32{{unchanged, unchanged}, sums}          // by rank
			for _, row := range []struct {
				operation symmem.Operation
				count     int64
				root      int
				want      []float32
			}{
				{symmem.OpAllReduce, 2, 0, sums},
				{symmem.OpReduceScatter, 1, 0, parts[r.Rank()]},
				{symmem.OpReduce, 2, root, atRoot[r.Rank()]},
			} {
				write(r, send, []float32{float32(r.Rank() + 1), float32(4 * r.Rank())})
				write(r, recv, []float32{unchanged, unchanged})
				r.ok(r.Interop().Do(r.ctx, r.World(), symmem.Call{
					Operation: row.operation, Type: symmem.Float32, Op: symmem.PremulSum, Factor: factor,
					Count: row.count, Root: row.root, Send: send, Recv: recv,
				}, nil))
				if got := read[float32](r, recv); !slices.Equal(got, row.want) {
					r.failf("%v with factor %v = %v; want %v", row.operation, factor, got, row.want)
				}
			}
		}
	})
}

func TestPremulSumNeedsFactor(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		m := r.unregistered(8)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.PremulSum, Count: 2, Send: m,
			Recv: m,
		}
		for _, factor := range []float64{0, math.NaN(), math.Inf(1)} {
			call.Factor = factor
			r.wantErr(r.Interop().Do(r.ctx, r.World(), call, nil), symmem.ErrInvalid)
		}
		call.Factor, call.Op = 2, symmem.Sum
		r.wantErr(r.Interop().Do(r.ctx, r.World(), call, nil), symmem.ErrInvalid)
	})
}

func TestDifferentFactorsDiverge(t *testing.T) {
	options := symmem.Options{Check: symmem.CheckEvery, Path: symmem.PathPlain}
	runWithFault(t, 2, options, func(r *rank) {
		m := r.alloc(r.pool(), 4096).Memory()
		err := r.Interop().Do(r.ctx, r.World(), symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.PremulSum, Count: 2,
			Factor: 0.5 * float64(r.Rank()+1), Send: m, Recv: m,
		}, nil)
		d := r.wantDivergence(errors.Join(err, r.DefaultStream().Synchronize(r.ctx)))
		want := []symmem.Side{
			{Ranks: []int{0}, Event: "AllReduce 0.5*sum of 2 float32, path plain, collective 1"},
			{Ranks: []int{1}, Event: "AllReduce 1*sum of 2 float32, path plain, collective 1"},
		}
		if diff := cmp.Diff(want, d.Sides); diff != "" {
			r.failf("the sides differ (-want +got):\n%s", diff)
		}
	})
}

// TestNormCallMatchesMethod compares the errors of Do and of the method, for a valid and an invalid
// norm.
func TestNormCallMatchesMethod(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		m := r.unregistered(16)
		for _, hidden := range []int64{8, 7} { // elements of a row; 7 are not supported
			a := symmem.NormArgs{
				Input: m, Output: m, Residual: r.unregistered(16), Weight: r.unregistered(16),
				Rows: 1, Hidden: hidden,
			}
			want := r.World().AllReduceRMSNorm(r.ctx, a, nil)
			got := r.Interop().Do(r.ctx, r.World(), symmem.Call{
				Operation: symmem.OpAllReduceRMSNorm, Norm: &a,
			}, nil)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				r.failf("rows of %d: Do = %v, want the method's result %v", hidden, got, want)
			}
		}
		r.synchronize()
	})
}

// TestStopWord checks that a group's stop word, which kernels on GPUs can poll, becomes nonzero
// when the group fails. The host backend has no stop words.
func TestStopWord(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		word := r.Interop().StopWord(g)
		if r.Device().Addressable {
			if word != 0 {
				r.failf("StopWord = %#x on the host backend, want 0", word)
			}
			return
		}
		if word == 0 {
			r.failf("StopWord = 0, want an address")
		}
		g.Abort()
		stop := (*atomic.Uint32)(unsafe.Pointer(wordAt(word)))
		for stop.Load() == 0 {
			if r.ctx.Err() != nil {
				r.failf("the word is 0 after the group has failed")
			}
			runtime.Gosched()
		}
	})
}

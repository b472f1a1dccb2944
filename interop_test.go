package symmem_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"symmem"
)

// TestCallValuesMatchMethods makes each call that combines a number or a text of all ranks. Calls
// with different values that must be equal, or with invalid arguments, must fail.
func TestCallValuesMatchMethods(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		interop, w, me := r.Interop(), r.World(), int64(r.Rank())
		for _, row := range []struct {
			operation symmem.ValueOperation
			value     int64 // this rank's number, where me is 0 or 1
			text      string
			want      int64 // the result, which is 0 or 1 for Any and All, and 0 for texts
		}{
			{operation: symmem.ValueAgree, value: 7, want: 7},
			{operation: symmem.ValueAny, value: 5 * me, want: 1}, // 5 on rank 1
			{operation: symmem.ValueAll, value: 5 * me, want: 0}, // 0 on rank 0
			{operation: symmem.ValueAll, value: 5 + me, want: 1},
			{operation: symmem.ValueMin, value: 3 + me, want: 3},
			{operation: symmem.ValueMax, value: 3 + me, want: 4},
			{operation: symmem.ValueSum, value: 3 + me, want: 3 + 4},
			{operation: symmem.ValueAgreeString, text: "8 experts", want: 0},
			{operation: symmem.ValueStep, text: "decode", want: 0},
		} {
			call := symmem.ValueCall{
				Operation: row.operation, Name: row.operation.String(), Value: row.value, Text: row.text,
			}
			got, err := interop.Value(r.ctx, w, call)
			r.ok(err)
			if got != row.want {
				r.failf("Value(%+v) = %d, want %d", call, got, row.want)
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

		var noGroup *symmem.Group
		_, err = interop.Value(r.ctx, noGroup, rate)
		r.wantErr(err, symmem.ErrInvalid)
	})
}

// TestPremulSum checks sums of which each contribution is multiplied by a factor. Calls with
// different factors must not share a plan (the cached preparation of a call), so the first factor
// comes again at the end.
func TestPremulSum(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		send, err := r.window(p, 4096).Memory().Slice(0, 8)
		r.ok(err)
		recv, err := r.window(p, 4096).Memory().Slice(0, 8)
		r.ok(err)
		for _, factor := range []float64{0.5, -0.25, 0.5} {
			const unchanged, root = -1, 1 // unchanged is in memory that a call must not write
			f := float32(factor)
			// Rank 0 contributes 1 and 0. Rank 1 contributes 2 and 4.
			ownElements := []float32{float32(r.Rank() + 1), float32(4 * r.Rank())}
			sums := []float32{(1 + 2) * f, (0 + 4) * f}
			partByRank := [][]float32{{sums[0], unchanged}, {sums[1], unchanged}}
			rootedByRank := [][]float32{{unchanged, unchanged}, sums}
			for _, row := range []struct {
				operation symmem.Operation
				count     int64
				root      int // 0 for operations without a root
				want      []float32
			}{
				{symmem.OpAllReduce, 2, 0, sums},
				{symmem.OpReduceScatter, 1, 0, partByRank[r.Rank()]},
				{symmem.OpReduce, 2, root, rootedByRank[r.Rank()]},
			} {
				write(r, send, ownElements)
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

// TestPremulSumNeedsFactor passes factors that PremulSum refuses, and a factor to another
// reduction.
func TestPremulSumNeedsFactor(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const count = 2
		m := r.unregistered(4 * count)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.PremulSum, Count: count,
			Send: m, Recv: m,
		}
		for _, factor := range []float64{0, math.NaN(), math.Inf(1)} {
			call.Factor = factor
			r.wantErr(r.Interop().Do(r.ctx, r.World(), call, nil), symmem.ErrInvalid)
		}

		call.Factor, call.Op = 2, symmem.Sum // Sum has no factor
		r.wantErr(r.Interop().Do(r.ctx, r.World(), call, nil), symmem.ErrInvalid)
	})
}

// TestDifferentFactorsDiverge passes the factor 0.5 on rank 0 and 1 on rank 1. The error must show
// both.
func TestDifferentFactorsDiverge(t *testing.T) {
	options := symmem.Options{Check: symmem.CheckEvery, Path: symmem.PathPlain}
	runWithFault(t, 2, options, func(r *rank) {
		m := r.alloc(r.pool(), 4096).Memory()
		err := r.Interop().Do(r.ctx, r.World(), symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.PremulSum, Count: 2,
			Factor: 0.5 * float64(r.Rank()+1), Send: m, Recv: m,
		}, nil)
		syncErr := r.DefaultStream().Synchronize(r.ctx) // reports an error of the submitted call
		d := r.wantDivergence(errors.Join(err, syncErr))
		want := []symmem.Side{
			{Ranks: []int{0}, Event: "AllReduce 0.5*sum of 2 float32, path plain, collective 1"},
			{Ranks: []int{1}, Event: "AllReduce 1*sum of 2 float32, path plain, collective 1"},
		}
		if diff := cmp.Diff(want, d.Sides); diff != "" {
			r.failf("the sides differ (-want +got):\n%s", diff)
		}
	})
}

// TestNormCallMatchesMethod calls AllReduceRMSNorm, which normalizes the rows of a sum, through its
// method and through Do. Both must return the same error, for a valid and an invalid row length.
func TestNormCallMatchesMethod(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const validLength, invalidLength = 8, 7 // elements of a row
		const bytes = 2 * validLength           // the default type is bfloat16
		m := r.unregistered(bytes)
		for _, length := range []int64{validLength, invalidLength} {
			args := symmem.NormArgs{
				Input: m, Output: m, Residual: r.unregistered(bytes), Weight: r.unregistered(bytes),
				Rows: 1, Hidden: length,
			}
			want := r.World().AllReduceRMSNorm(r.ctx, args, nil)
			got := r.Interop().Do(r.ctx, r.World(), symmem.Call{
				Operation: symmem.OpAllReduceRMSNorm, Norm: &args,
			}, nil)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				r.failf("rows of %d: Do = %v, want the method's result %v", length, got, want)
			}
		}

		r.synchronize()
	})
}

// TestStopWord aborts a group on a GPU. The group's stop word, which kernels can poll, must become
// nonzero. The host backend has no stop words.
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
		const limit = 20 * time.Second // much longer than an abort takes
		for begin := time.Now(); stop.Load() == 0; {
			if time.Since(begin) > limit {
				r.failf("the word is 0 for %v after the group has failed, want another value", limit)
			}

			runtime.Gosched()
		}
	})
}

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

// Interop is for bindings of other languages. A binding makes a call by a description of it: a
// ValueCall for a number or a text of each rank, such as the sum 3+4 = 7, or a Call for a
// collective on memory. These tests make such calls and check their results and errors.

// TestCallValuesMatchMethods makes ValueCalls of different operations and checks their results.
func TestCallValuesMatchMethods(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		me := int64(r.Rank()) // 0 or 1
		for _, row := range []struct {
			operation symmem.ValueOperation
			value     int64  // of this rank
			text      string // of this rank, for the operations on texts
			want      int64  // the result; 0 for texts, and 1 for a true result of Any or All
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
			got, err := r.Interop().Value(r.ctx, r.World(), call)
			r.ok(err)
			if got != row.want {
				r.failf("Value(%+v) = %d, want %d", call, got, row.want)
			}
		}
	})
}

// TestValueCallsAreChecked makes a ValueCall with different values that must be equal, and calls
// with invalid arguments. All must fail.
func TestValueCallsAreChecked(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		interop := r.Interop()
		w := r.World()
		rate := symmem.ValueCall{Operation: symmem.ValueAgreeFloat, Name: "rate", Float: 0.5}
		_, err := interop.Value(r.ctx, w, rate)
		r.ok(err)
		rate.Float += float64(r.Rank()) // differs between the ranks
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

// TestPremulSum computes sums in which each number is multiplied by a factor. The group caches its
// preparation of a call. Calls with different factors must not use the same preparation, so the
// first factor comes again at the end.
func TestPremulSum(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		const bytes = 2 * 4 // of two float32 elements
		send, err := r.window(p, 4096).Memory().Slice(0, bytes)
		r.ok(err)
		recv, err := r.window(p, 4096).Memory().Slice(0, bytes)
		r.ok(err)
		// Rank 0 contributes 1 and 0. Rank 1 contributes 2 and 4.
		ownElements := []float32{float32(r.Rank() + 1), float32(4 * r.Rank())}
		for _, factor := range []float64{0.5, -0.25, 0.5} {
			const root = 1
			const unchanged = -1 // in elements of recv that a call must not write
			f := float32(factor)
			sums := []float32{(1 + 2) * f, (0 + 4) * f}
			partByRank := [][]float32{{sums[0], unchanged}, {sums[1], unchanged}}
			rootedByRank := [][]float32{{unchanged, unchanged}, sums}
			for _, row := range []struct {
				operation symmem.Operation
				count     int64
				root      int       // 0 for operations without a root
				want      []float32 // in recv
			}{
				{operation: symmem.OpAllReduce, count: 2, want: sums},
				{operation: symmem.OpReduceScatter, count: 1, want: partByRank[r.Rank()]},
				{operation: symmem.OpReduce, count: 2, root: root, want: rootedByRank[r.Rank()]},
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

// TestPremulSumNeedsFactor passes factors that PremulSum must refuse, and a factor to another
// reduction, which must also be refused.
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

		call.Op = symmem.Sum // has no factor
		call.Factor = 2
		r.wantErr(r.Interop().Do(r.ctx, r.World(), call, nil), symmem.ErrInvalid)
	})
}

// TestDifferentFactorsDiverge passes the factor 0.5 on rank 0 and the factor 1 on rank 1. The error
// must show both factors.
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

// TestNormCallMatchesMethod calls AllReduceRMSNorm, which normalizes the rows of a sum, as a method
// and as a Call. Both must return the same error, or nil, for a valid and an invalid row length.
func TestNormCallMatchesMethod(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const validLength = 8         // elements of a row
		const invalidLength = 7       // also fits into the memory
		const bytes = 2 * validLength // the default type is bfloat16
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

// TestStopWord aborts a group on a GPU. The group's stop word, a word of memory that kernels can
// poll, must become nonzero. The host backend has no stop words.
func TestStopWord(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		address := r.Interop().StopWord(g)
		if r.Device().Addressable {
			if address != 0 {
				r.failf("StopWord = %#x on the host backend, want 0", address)
			}

			return
		}

		if address == 0 {
			r.failf("StopWord = 0, want an address")
		}

		g.Abort()
		stopWord := (*atomic.Uint32)(unsafe.Pointer(wordAt(address)))
		const limit = 20 * time.Second // much longer than an abort takes
		for begin := time.Now(); stopWord.Load() == 0; {
			if time.Since(begin) > limit {
				r.failf("the stop word is still 0 after %v, want another value", limit)
			}

			runtime.Gosched()
		}
	})
}

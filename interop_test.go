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

// A ValueCall combines a number of each rank, or compares texts.
func TestCallValuesMatchMethods(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		me := int64(r.Rank())
		zeroOrFive := 5 * me // on ranks 0 and 1
		fiveOrSix := 5 + me
		threeOrFour := 3 + me
		for _, row := range []struct {
			operation symmem.ValueOperation
			value     int64
			text      string // of ValueAgreeString and ValueStep
			want      int64
		}{
			{operation: symmem.ValueAgree, value: 7, want: 7},
			{operation: symmem.ValueAny, value: zeroOrFive, want: 1},
			{operation: symmem.ValueAll, value: zeroOrFive, want: 0},
			{operation: symmem.ValueAll, value: fiveOrSix, want: 1},
			{operation: symmem.ValueMin, value: threeOrFour, want: 3},
			{operation: symmem.ValueMax, value: threeOrFour, want: 4},
			{operation: symmem.ValueSum, value: threeOrFour, want: 3 + 4},
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
		const afterLast = symmem.ValueAgreeString + 1
		for _, unknown := range []symmem.ValueOperation{0, afterLast} {
			_, err = interop.Value(r.ctx, w, symmem.ValueCall{Operation: unknown, Name: "rate"})
			r.wantErr(err, symmem.ErrInvalid)
		}

		var noGroup *symmem.Group
		_, err = interop.Value(r.ctx, noGroup, rate)
		r.wantErr(err, symmem.ErrInvalid)
	})
}

// PremulSum multiplies each number by a factor before it adds the numbers of all ranks.
func TestPremulSum(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		const count, elementBytes = 2, 4 // of float32
		const bytes = count * elementBytes
		send, err := r.window(p, 4096).Memory().Slice(0, bytes)
		r.ok(err)
		recv, err := r.window(p, 4096).Memory().Slice(0, bytes)
		r.ok(err)
		inputs := [][]float32{{1, 0}, {2, 4}} // by rank
		const root = 1
		const unchanged = -1 // an element that the operation does not write
		// The second 0.5 detects a cached factor of an earlier call.
		for _, factor := range []float64{0.5, -0.25, 0.5} {
			f := float32(factor)
			sums := []float32{(1 + 2) * f, (0 + 4) * f}
			scattered := [][]float32{{sums[0], unchanged}, {sums[1], unchanged}} // by rank
			reduced := [][]float32{{unchanged, unchanged}, sums}                 // by rank
			for _, row := range []struct {
				operation symmem.Operation
				count     int64
				root      int
				want      []float32
			}{
				{operation: symmem.OpAllReduce, count: count, want: sums},
				{operation: symmem.OpReduceScatter, count: count / 2, want: scattered[r.Rank()]},
				{operation: symmem.OpReduce, count: count, root: root, want: reduced[r.Rank()]},
			} {
				write(r, send, inputs[r.Rank()])
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

// PremulSum needs a finite factor other than 0, and other reductions accept no factor.
func TestPremulSumNeedsFactor(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const count, float32Bytes = 2, 4
		m := r.unregistered(count * float32Bytes)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.PremulSum, Count: count,
			Send: m, Recv: m,
		}
		for _, factor := range []float64{0, math.NaN(), math.Inf(1)} {
			call.Factor = factor
			r.wantErr(r.Interop().Do(r.ctx, r.World(), call, nil), symmem.ErrInvalid)
		}

		call.Op = symmem.Sum
		call.Factor = 2
		r.wantErr(r.Interop().Do(r.ctx, r.World(), call, nil), symmem.ErrInvalid)
	})
}

func TestDifferentFactorsDiverge(t *testing.T) {
	options := symmem.Options{Check: symmem.CheckEvery, Path: symmem.PathPlain}
	runWithFault(t, 2, options, func(r *rank) {
		m := r.alloc(r.pool(), 4096).Memory()
		factors := []float64{0.5, 1} // by rank
		callErr := r.Interop().Do(r.ctx, r.World(), symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.PremulSum, Count: 2,
			Factor: factors[r.Rank()], Send: m, Recv: m,
		}, nil)
		syncErr := r.DefaultStream().Synchronize(r.ctx)
		d := r.wantDivergence(errors.Join(callErr, syncErr))
		want := []symmem.Side{
			{Ranks: []int{0}, Event: "AllReduce 0.5*sum of 2 float32, path plain, collective 1"},
			{Ranks: []int{1}, Event: "AllReduce 1*sum of 2 float32, path plain, collective 1"},
		}
		if diff := cmp.Diff(want, d.Sides); diff != "" {
			r.failf("the sides differ (-want +got):\n%s", diff)
		}
	})
}

func TestNormCallMatchesMethod(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const validLength, invalidLength = 8, 7 // lengths must be multiples of 8 elements
		const elementBytes = 2                  // of bfloat16, the default type
		const rowBytes = elementBytes * validLength
		m := r.unregistered(rowBytes)
		for _, length := range []int64{validLength, invalidLength} {
			args := symmem.NormArgs{
				Input: m, Output: m, Residual: r.unregistered(rowBytes),
				Weight: r.unregistered(rowBytes), Rows: 1, Hidden: length,
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

// When a group fails, its stop word becomes nonzero. GPU kernels poll this word.
func TestStopWord(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		address := r.Interop().StopWord(g)
		hasGPU := !r.Device().Addressable
		if hasStopWord := address != 0; hasStopWord != hasGPU {
			r.failf("StopWord = %#x, want an address on a GPU and 0 on the host backend", address)
		}

		if !hasGPU {
			return
		}

		g.Abort()
		stopWord := (*atomic.Uint32)(unsafe.Pointer(wordAt(address)))
		const limit = 20 * time.Second // much longer than an abort takes
		begin := time.Now()
		for stopWord.Load() == 0 {
			if time.Since(begin) > limit {
				r.failf("the stop word is still 0 after %v, want another value", limit)
			}

			runtime.Gosched()
		}
	})
}

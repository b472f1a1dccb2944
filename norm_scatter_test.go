package symmem_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"symmem"
)

// An RMS norm adds the input of all ranks and the residual, replaces the residual by this sum, and
// normalizes the rows of the sum. ReduceScatterRMSNorm leaves on each rank only the rank's part of
// the rows, and AllReduceRMSNorm leaves all rows on each rank.

// scatter sets r.args to the arguments of a ReduceScatterRMSNorm with the given number of rows on
// each rank. It returns the arguments of an AllReduceRMSNorm of the same input, with which tests
// compare.
func (r *normRank) scatter(rows int64) (whole symmem.NormArgs) {
	a := &r.args
	allRows := rows * int64(r.Size())
	tensor := func(count int64) symmem.Memory { // allocates count rows
		return r.alloc(r.pool, count*a.Hidden*elementBytes).Memory()
	}
	a.Rows, a.Input = rows, tensor(allRows)
	a.Output, a.Residual = tensor(rows), tensor(rows)
	r.fill(a.Input, r.scatteredInput)
	r.fill(a.Weight, func(i int) float32 { return float32(1 + i%3) })
	first := r.Rank() * int(rows*a.Hidden) // first element of this rank in the whole residual
	residual := func(i int) float32 { return float32(math.Cos(float64(3 * i))) }
	r.fill(a.Residual, func(i int) float32 { return residual(first + i) })
	whole = *a
	whole.Rows, whole.Output, whole.Residual = allRows, tensor(allRows), tensor(allRows)
	r.fill(whole.Residual, residual)
	return whole
}

// rowsPerRank is the number of rows in tests in which it does not matter.
const rowsPerRank = 3

// scatteredInput returns element i of this rank's input: any numbers that differ between ranks.
func (r *normRank) scatteredInput(i int) float32 {
	return float32(math.Sin(float64(i*i + r.Rank())))
}

const elementBytes = 2 // of bfloat16, the type of all tensors except for quantized ones

// ownRows returns this rank's rows of a tensor with the rows of all ranks.
func (r *normRank) ownRows(m symmem.Memory) []float32 {
	bytes := r.args.Rows * r.args.Hidden * elementBytes
	own, err := m.Slice(int64(r.Rank())*bytes, bytes)
	r.ok(err)
	return r.readNumbers(own)
}

// TestScatteredNormHasBitsOfAllReduce compares both operations on the same input. Each rank's
// results must have the same bits, for small and large numbers of rows.
func TestScatteredNormHasBitsOfAllReduce(t *testing.T) {
	for _, rows := range []int64{1, 5, 300} { // on each rank
		runNorms(t, func(r *normRank) {
			whole := r.scatter(rows)
			r.ok(r.World().ReduceScatterRMSNorm(r.ctx, r.args, nil))
			r.ok(r.World().AllReduceRMSNorm(r.ctx, whole, nil))
			if !slices.Equal(r.readNumbers(r.args.Output), r.ownRows(whole.Output)) {
				r.failf("%d rows on each rank: the output differs from AllReduceRMSNorm, want equal bits",
					rows)
			}

			if !slices.Equal(r.readNumbers(r.args.Residual), r.ownRows(whole.Residual)) {
				r.failf("%d rows on each rank: the residual differs from AllReduceRMSNorm, want equal bits",
					rows)
			}
		})
	}
}

// TestScatteredNormReadsPeersInput computes the norm of more rows than fit into the exchange
// memory of GPUs, so that ranks must read each other's input. Only the input is in symmetric
// memory.
func TestScatteredNormReadsPeersInput(t *testing.T) {
	runNorms(t, func(r *normRank) {
		const rows = 600    // on each rank
		const hidden = 8192 // elements of a row
		a := &r.args
		a.Rows, a.Hidden = rows, hidden
		symmetric := r.rank.pool() // r.pool has other memory
		a.Input = r.alloc(symmetric, rows*hidden*elementBytes*int64(r.Size())).Memory()
		a.Output = r.alloc(r.pool, rows*hidden*elementBytes).Memory()
		a.Residual = r.alloc(r.pool, rows*hidden*elementBytes).Memory()
		a.Weight = r.alloc(r.pool, hidden*elementBytes).Memory()
		r.fill(a.Input, func(i int) float32 { return float32(i%7 + r.Rank()) })
		r.fill(a.Residual, func(i int) float32 { return float32(i % 5) })
		r.fill(a.Weight, func(int) float32 { return 1 })
		r.ok(r.World().ReduceScatterRMSNorm(r.ctx, *a, nil))
		first := r.Rank() * rows * hidden // first element of this rank in the input
		for i, got := range r.readNumbers(a.Residual) {
			inputOf0 := (first + i) % 7
			inputOf1 := inputOf0 + 1
			earlier := i % 5
			want := float32(inputOf0 + inputOf1 + earlier)
			if got != want {
				r.failf("element %d of the residual = %g, want %g", i, got, want)
			}
		}
	})
}

// TestScatteredNormOnlyQuantizes computes quantized rows without an Output. They must be the rows
// of an AllReduceRMSNorm.
func TestScatteredNormOnlyQuantizes(t *testing.T) {
	runNorms(t, func(r *normRank) {
		whole := r.scatter(rowsPerRank)
		a := &r.args
		for _, args := range []*symmem.NormArgs{a, &whole} {
			const quantizedBytes, scaleBytes = 1, 4
			args.Output, args.Quant = symmem.Memory{}, symmem.QuantPerRow
			args.Quantized = r.alloc(r.pool, quantizedBytes*args.Rows*args.Hidden).Memory()
			args.Scales = r.alloc(r.pool, scaleBytes*args.Rows).Memory()
		}

		r.ok(r.World().ReduceScatterRMSNorm(r.ctx, *a, nil))
		r.fill(a.Input, r.scatteredInput) // the call may have changed it
		r.ok(r.World().AllReduceRMSNorm(r.ctx, whole, nil))
		got := make([]byte, a.Rows*a.Hidden)
		allRows := make([]byte, whole.Rows*a.Hidden)
		s := r.DefaultStream()
		r.ok(s.Copy(symmem.Host(got), a.Quantized))
		r.ok(s.Copy(symmem.Host(allRows), whole.Quantized))
		r.ok(s.Synchronize(r.ctx))
		want := allRows[r.Rank()*len(got):][:len(got)] // this rank's rows
		if !slices.Equal(got, want) {
			r.failf("the quantized rows differ from those of an AllReduceRMSNorm, want equal bytes")
		}
	})
}

// TestNormOperationsDiverge calls ReduceScatterRMSNorm on rank 0 and AllReduceRMSNorm on rank 1.
// Both must return a DivergenceError.
func TestNormOperationsDiverge(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.scatter(rowsPerRank)
		norm := r.World().ReduceScatterRMSNorm
		if r.Rank() == 1 {
			norm = r.World().AllReduceRMSNorm
		}

		err := norm(r.ctx, r.args, nil)
		if err == nil {
			err = r.DefaultStream().Synchronize(r.ctx)
		}

		var diverged *symmem.DivergenceError
		if !errors.As(err, &diverged) {
			r.failf("got %v, want a DivergenceError", err)
		}
	})
}

// TestInvalidScatteredNorms checks that the input must hold the rows of all ranks. The output may
// overlap the part of the input that becomes this rank's rows, but no other part.
func TestInvalidScatteredNorms(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.scatter(rowsPerRank)
		inputPart := func(owner int) symmem.Memory { // the rows that the call sums for a rank
			bytes := r.args.Rows * r.args.Hidden * elementBytes
			m, err := r.args.Input.Slice(int64(owner)*bytes, bytes)
			r.ok(err)
			return m
		}
		for _, c := range []struct {
			name   string
			change func(a *symmem.NormArgs) // of valid arguments
			want   error
		}{
			{
				name:   "an input of one rank's rows",
				change: func(a *symmem.NormArgs) { a.Input = inputPart(0) },
				want:   symmem.ErrOutOfRange,
			},
			{
				name:   "output over this rank's part of the input",
				change: func(a *symmem.NormArgs) { a.Output = inputPart(r.Rank()) },
				want:   nil,
			},
			{
				name:   "output over another rank's part of the input",
				change: func(a *symmem.NormArgs) { a.Output = inputPart(1 - r.Rank()) },
				want:   symmem.ErrInvalid,
			},
		} {
			a := r.args
			c.change(&a)
			if err := r.World().ReduceScatterRMSNorm(r.ctx, a, nil); !errors.Is(err, c.want) {
				r.failf("%s: got %v, want %v", c.name, err, c.want)
			}
		}
	})
}

// TestRepeatedScatteredNormDoesNotAllocate checks that only the first call allocates Go memory.
func TestRepeatedScatteredNormDoesNotAllocate(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.scatter(rowsPerRank)
		call := func() { r.ok(r.World().ReduceScatterRMSNorm(r.ctx, r.args, nil)) }
		call()
		const countingRank = 0
		r.expectNoAllocations(countingRank, call)
		r.ok(r.DefaultStream().Synchronize(r.ctx))
	})
}

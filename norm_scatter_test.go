package symmem_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"symmem"
)

// An RMS norm adds the inputs of all ranks and the residual, replaces the residual by this sum, and
// writes the normalized rows of the sum to the output. AllReduceRMSNorm does this for all rows on
// each rank. ReduceScatterRMSNorm does it only for a rank's own rows: with 3 rows per rank, rank 0
// gets rows 0 to 2 of the sum and rank 1 gets rows 3 to 5. The input has the rows of all ranks. A
// row has NormArgs.Hidden elements.

const elementBytes = 2 // of bfloat16, the type of all tensors except for quantized ones

// rowsPerRank is the number of rows in tests in which it does not matter.
const rowsPerRank = 3

// scatter sets r.args to the arguments of a ReduceScatterRMSNorm with the given number of rows per
// rank. It returns the arguments of an AllReduceRMSNorm of the same input and residual, with which
// tests compare.
func (r *normRank) scatter(rows int64) (whole symmem.NormArgs) {
	a := &r.args
	allRows := rows * int64(r.Size())
	tensor := func(rowCount int64) symmem.Memory {
		return r.alloc(r.pool, rowCount*a.Hidden*elementBytes).Memory()
	}
	a.Rows = rows
	a.Input = tensor(allRows)
	a.Output = tensor(rows)
	a.Residual = tensor(rows)
	r.fill(a.Input, r.scatteredInput)
	r.fill(a.Weight, func(i int) float32 { return float32(1 + i%3) })
	// residual returns element i of the residual in the AllReduceRMSNorm, which has all rows.
	residual := func(i int) float32 { return float32(math.Cos(float64(3 * i))) }
	ownFirst := r.Rank() * int(rows*a.Hidden) // the first element in this rank's rows
	r.fill(a.Residual, func(i int) float32 { return residual(ownFirst + i) })
	whole = *a
	whole.Rows = allRows
	whole.Output = tensor(allRows)
	whole.Residual = tensor(allRows)
	r.fill(whole.Residual, residual)
	return whole
}

// scatteredInput returns element i of this rank's input: any numbers that differ between ranks.
func (r *normRank) scatteredInput(i int) float32 {
	return float32(math.Sin(float64(i*i + r.Rank())))
}

// ownRows returns this rank's rows of a tensor with the rows of all ranks.
func (r *normRank) ownRows(m symmem.Memory) []float32 {
	bytes := r.args.Rows * r.args.Hidden * elementBytes
	own, err := m.Slice(int64(r.Rank())*bytes, bytes)
	r.ok(err)
	return r.readNumbers(own)
}

// TestScatteredNormHasBitsOfAllReduce computes both norms of the same input. Each rank's own rows
// must have the same bits, for small and large numbers of rows.
func TestScatteredNormHasBitsOfAllReduce(t *testing.T) {
	for _, rows := range []int64{1, 5, 300} { // per rank
		runNorms(t, func(r *normRank) {
			whole := r.scatter(rows)
			r.ok(r.World().ReduceScatterRMSNorm(r.ctx, r.args, nil))
			r.ok(r.World().AllReduceRMSNorm(r.ctx, whole, nil))
			output := r.readNumbers(r.args.Output)
			if !slices.Equal(output, r.ownRows(whole.Output)) {
				r.failf("%d rows per rank: the output differs from AllReduceRMSNorm, want equal bits", rows)
			}

			residual := r.readNumbers(r.args.Residual)
			if !slices.Equal(residual, r.ownRows(whole.Residual)) {
				r.failf("%d rows per rank: the residual differs from AllReduceRMSNorm, want equal bits", rows)
			}
		})
	}
}

// TestScatteredNormReadsPeersInput computes a norm of many rows, whose input is in symmetric
// memory: memory at equal offsets on all ranks, which ranks can read from each other. The rows do
// not fit into the memory through which GPUs exchange small inputs, so each rank must read its
// peer's input.
func TestScatteredNormReadsPeersInput(t *testing.T) {
	runNorms(t, func(r *normRank) {
		const rows = 600    // per rank
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
		ownFirst := r.Rank() * rows * hidden // the first element in this rank's rows of the input
		for i, got := range r.readNumbers(a.Residual) {
			inputOf0 := (ownFirst + i) % 7
			inputOf1 := inputOf0 + 1
			oldResidual := i % 5
			want := float32(inputOf0 + inputOf1 + oldResidual)
			if got != want {
				r.failf("element %d of the residual = %g, want %g", i, got, want)
			}
		}
	})
}

// TestScatteredNormOnlyQuantizes computes norms without an output, whose rows are only written in
// quantized form: as numbers of one byte, with a scale for each row. Each rank's own rows must be
// the same as with an AllReduceRMSNorm.
func TestScatteredNormOnlyQuantizes(t *testing.T) {
	runNorms(t, func(r *normRank) {
		whole := r.scatter(rowsPerRank)
		a := &r.args
		for _, args := range []*symmem.NormArgs{a, &whole} {
			const quantizedBytes = 1 // of an element
			const scaleBytes = 4
			args.Output = symmem.Memory{}
			args.Quant = symmem.QuantPerRow
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
		ownFirst := r.Rank() * len(got)
		want := allRows[ownFirst : ownFirst+len(got)]
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

// TestInvalidScatteredNorms passes an input that has too few rows, which must be refused, and
// outputs that overlap the input. The output may overlap this rank's own rows of the input, but no
// others.
func TestInvalidScatteredNorms(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.scatter(rowsPerRank)
		inputRows := func(owner int) symmem.Memory { // the own rows of a rank
			bytes := r.args.Rows * r.args.Hidden * elementBytes
			m, err := r.args.Input.Slice(int64(owner)*bytes, bytes)
			r.ok(err)
			return m
		}
		for _, c := range []struct {
			name   string
			change func(a *symmem.NormArgs) // is applied to valid arguments
			want   error
		}{
			{
				name:   "an input with the rows of one rank only",
				change: func(a *symmem.NormArgs) { a.Input = inputRows(0) },
				want:   symmem.ErrOutOfRange,
			},
			{
				name:   "output over this rank's rows of the input",
				change: func(a *symmem.NormArgs) { a.Output = inputRows(r.Rank()) },
				want:   nil,
			},
			{
				name:   "output over another rank's rows of the input",
				change: func(a *symmem.NormArgs) { a.Output = inputRows(1 - r.Rank()) },
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

// TestRepeatedScatteredNormDoesNotAllocate repeats a call. Only the first one may allocate Go
// memory.
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

package symmem_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"symmem"
)

// An RMS norm adds the inputs of all ranks to the residual, normalizes the rows of the new
// residual, and writes them to the output. AllReduceRMSNorm computes all rows on each rank.
// ReduceScatterRMSNorm divides the rows among the ranks: with 3 rows per rank, rank 1 owns rows 3
// to 5.

const bfloat16Bytes = 2

const fewRowsPerRank = 3

// prepareScatter sets r.args for a ReduceScatterRMSNorm, and returns arguments with which
// AllReduceRMSNorm computes the same rows from the same input.
func (r *normRank) prepareScatter(rowsPerRank int64) (whole symmem.NormArgs) {
	allRows := rowsPerRank * int64(r.Size())
	allocRows := func(rows int64) symmem.Memory {
		return r.alloc(r.pool, rows*r.args.Hidden*bfloat16Bytes).Memory()
	}
	own := &r.args
	own.Rows = rowsPerRank
	own.Input = allocRows(allRows)
	own.Output = allocRows(rowsPerRank)
	own.Residual = allocRows(rowsPerRank)
	r.fill(own.Input, r.scatteredInput)
	r.fill(own.Weight, func(i int) float32 { return float32(1 + i%3) })
	wholeResidual := func(i int) float32 { return float32(math.Cos(float64(3 * i))) }
	firstOwnElement := r.Rank() * int(rowsPerRank*own.Hidden)
	r.fill(own.Residual, func(i int) float32 { return wholeResidual(firstOwnElement + i) })
	whole = *own // with the same Input and Weight
	whole.Rows = allRows
	whole.Output = allocRows(allRows)
	whole.Residual = allocRows(allRows)
	r.fill(whole.Residual, wholeResidual)
	return whole
}

func (r *normRank) scatteredInput(i int) float32 {
	return float32(math.Sin(float64(i*i + r.Rank())))
}

func (r *normRank) readOwnRows(allRows symmem.Memory) []float32 {
	bytes := r.args.Rows * r.args.Hidden * bfloat16Bytes
	own, err := allRows.Slice(int64(r.Rank())*bytes, bytes)
	r.ok(err)
	return r.readNumbers(own)
}

func TestScatteredNormHasBitsOfAllReduce(t *testing.T) {
	for _, rowsPerRank := range []int64{1, 5, 300} {
		runNorms(t, func(r *normRank) {
			whole := r.prepareScatter(rowsPerRank)
			r.ok(r.World().ReduceScatterRMSNorm(r.ctx, r.args, nil))
			r.ok(r.World().AllReduceRMSNorm(r.ctx, whole, nil))
			output := r.readNumbers(r.args.Output)
			if !slices.Equal(output, r.readOwnRows(whole.Output)) {
				r.failf("%d rows per rank: the output differs from AllReduceRMSNorm, want equal bits",
					rowsPerRank)
			}

			residual := r.readNumbers(r.args.Residual)
			if !slices.Equal(residual, r.readOwnRows(whole.Residual)) {
				r.failf("%d rows per rank: the residual differs from AllReduceRMSNorm, want equal bits",
					rowsPerRank)
			}
		})
	}
}

// If the input does not fit into the exchange buffers, peers read it from symmetric memory.
func TestScatteredNormReadsPeersInput(t *testing.T) {
	runNorms(t, func(r *normRank) {
		const rowsPerRank = 600
		const hidden = 8192                      // elements of a row
		const inputPeriod, residualPeriod = 7, 5 // arbitrary
		a := &r.args
		a.Rows, a.Hidden = rowsPerRank, hidden
		const bytesPerRank = rowsPerRank * hidden * bfloat16Bytes
		symmetric := r.rank.pool() // memory of r.pool is not symmetric
		a.Input = r.alloc(symmetric, bytesPerRank*int64(r.Size())).Memory()
		a.Output = r.alloc(r.pool, bytesPerRank).Memory()
		a.Residual = r.alloc(r.pool, bytesPerRank).Memory()
		a.Weight = r.alloc(r.pool, hidden*bfloat16Bytes).Memory()
		r.fill(a.Input, func(i int) float32 { return float32(i%inputPeriod + r.Rank()) })
		r.fill(a.Residual, func(i int) float32 { return float32(i % residualPeriod) })
		r.fill(a.Weight, func(int) float32 { return 1 })
		r.ok(r.World().ReduceScatterRMSNorm(r.ctx, *a, nil))
		firstOwnElement := r.Rank() * rowsPerRank * hidden
		for i, got := range r.readNumbers(a.Residual) {
			inputOfRank0 := (firstOwnElement + i) % inputPeriod
			inputOfRank1 := inputOfRank0 + 1
			oldResidual := i % residualPeriod
			want := float32(inputOfRank0 + inputOfRank1 + oldResidual)
			if got != want {
				r.failf("element %d of the residual = %g, want %g", i, got, want)
			}
		}
	})
}

// With Quant and without Output, a norm writes a byte per element and a scale per row.
func TestScatteredNormOnlyQuantizes(t *testing.T) {
	runNorms(t, func(r *normRank) {
		whole := r.prepareScatter(fewRowsPerRank)
		a := &r.args
		for _, args := range []*symmem.NormArgs{a, &whole} {
			const quantizedBytes, scaleBytes = 1, 4
			args.Output = symmem.Memory{}
			args.Quant = symmem.QuantPerRow
			args.Quantized = r.alloc(r.pool, quantizedBytes*args.Rows*args.Hidden).Memory()
			args.Scales = r.alloc(r.pool, scaleBytes*args.Rows).Memory()
		}

		r.ok(r.World().ReduceScatterRMSNorm(r.ctx, *a, nil))
		r.fill(a.Input, r.scatteredInput) // shared with whole; the first norm may have changed it
		r.ok(r.World().AllReduceRMSNorm(r.ctx, whole, nil))
		got := make([]byte, a.Rows*a.Hidden)
		allRows := make([]byte, whole.Rows*a.Hidden)
		s := r.DefaultStream()
		r.ok(s.Copy(symmem.Host(got), a.Quantized))
		r.ok(s.Copy(symmem.Host(allRows), whole.Quantized))
		r.ok(s.Synchronize(r.ctx))
		firstOwnByte := r.Rank() * len(got)
		want := allRows[firstOwnByte:][:len(got)]
		if !slices.Equal(got, want) {
			r.failf("the quantized rows differ from those of an AllReduceRMSNorm, want equal bytes")
		}
	})
}

func TestNormOperationsDiverge(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.prepareScatter(fewRowsPerRank)
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

// The output may overlap the input only in this rank's own rows.
func TestInvalidScatteredNorms(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.prepareScatter(fewRowsPerRank)
		inputRows := func(owner int) symmem.Memory {
			bytes := r.args.Rows * r.args.Hidden * bfloat16Bytes
			m, err := r.args.Input.Slice(int64(owner)*bytes, bytes)
			r.ok(err)
			return m
		}
		for _, c := range []struct {
			name   string
			change func(valid *symmem.NormArgs)
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

func TestRepeatedScatteredNormDoesNotAllocate(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.prepareScatter(fewRowsPerRank)
		call := func() { r.ok(r.World().ReduceScatterRMSNorm(r.ctx, r.args, nil)) }
		call() // the first call may allocate
		const countingRank = 0
		r.expectNoAllocations(countingRank, call)
		r.ok(r.DefaultStream().Synchronize(r.ctx))
	})
}

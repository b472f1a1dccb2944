package symmem_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"symmem"
)

// An RMS norm adds the inputs of all ranks to the residual, and writes the normalized rows of the
// residual to the output. In AllReduceRMSNorm, each rank computes all rows. In
// ReduceScatterRMSNorm, each rank computes only its own rows: with 3 rows per rank, rank 1 owns
// rows 3 to 5.

const bfloat16Bytes = 2

const fewRows = 3 // per rank, arbitrary

// prepareScatter sets r.args for a ReduceScatterRMSNorm, and returns arguments with which
// AllReduceRMSNorm computes the same rows. The numbers are arbitrary.
func (r *normRank) prepareScatter(rowsPerRank int64) (whole symmem.NormArgs) {
	a := &r.args
	allRows := rowsPerRank * int64(r.Size())
	tensor := func(rowCount int64) symmem.Memory {
		return r.alloc(r.pool, rowCount*a.Hidden*bfloat16Bytes).Memory()
	}
	a.Rows = rowsPerRank
	a.Input = tensor(allRows)
	a.Output = tensor(rowsPerRank)
	a.Residual = tensor(rowsPerRank)
	r.fill(a.Input, r.scatteredInput)
	r.fill(a.Weight, func(i int) float32 { return float32(1 + i%3) })
	allResiduals := func(i int) float32 { return float32(math.Cos(float64(3 * i))) }
	firstOwnElement := r.Rank() * int(rowsPerRank*a.Hidden)
	r.fill(a.Residual, func(i int) float32 { return allResiduals(firstOwnElement + i) })
	whole = *a
	whole.Rows = allRows
	whole.Output = tensor(allRows)
	whole.Residual = tensor(allRows)
	r.fill(whole.Residual, allResiduals)
	return whole
}

func (r *normRank) scatteredInput(i int) float32 {
	return float32(math.Sin(float64(i*i + r.Rank())))
}

func (r *normRank) ownRows(allRows symmem.Memory) []float32 {
	bytes := r.args.Rows * r.args.Hidden * bfloat16Bytes
	own, err := allRows.Slice(int64(r.Rank())*bytes, bytes)
	r.ok(err)
	return r.readNumbers(own)
}

func TestScatteredNormHasBitsOfAllReduce(t *testing.T) {
	for _, rows := range []int64{1, 5, 300} { // per rank
		runNorms(t, func(r *normRank) {
			whole := r.prepareScatter(rows)
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

// If the input does not fit into the exchange buffers, peers read it from symmetric memory.
func TestScatteredNormReadsPeersInput(t *testing.T) {
	runNorms(t, func(r *normRank) {
		const rows = 600                         // per rank
		const hidden = 8192                      // elements of a row
		const inputPeriod, residualPeriod = 7, 5 // arbitrary
		a := &r.args
		a.Rows, a.Hidden = rows, hidden
		const ownBytes = rows * hidden * bfloat16Bytes
		symmetric := r.rank.pool() // memory of r.pool is not symmetric
		a.Input = r.alloc(symmetric, ownBytes*int64(r.Size())).Memory()
		a.Output = r.alloc(r.pool, ownBytes).Memory()
		a.Residual = r.alloc(r.pool, ownBytes).Memory()
		a.Weight = r.alloc(r.pool, hidden*bfloat16Bytes).Memory()
		r.fill(a.Input, func(i int) float32 { return float32(i%inputPeriod + r.Rank()) })
		r.fill(a.Residual, func(i int) float32 { return float32(i % residualPeriod) })
		r.fill(a.Weight, func(int) float32 { return 1 })
		r.ok(r.World().ReduceScatterRMSNorm(r.ctx, *a, nil))
		firstOwnElement := r.Rank() * rows * hidden
		for i, got := range r.readNumbers(a.Residual) {
			inputOf0 := (firstOwnElement + i) % inputPeriod
			inputOf1 := inputOf0 + 1
			oldResidual := i % residualPeriod
			want := float32(inputOf0 + inputOf1 + oldResidual)
			if got != want {
				r.failf("element %d of the residual = %g, want %g", i, got, want)
			}
		}
	})
}

// Without Output, a norm writes only quantized rows: a byte per element and a scale per row.
func TestScatteredNormOnlyQuantizes(t *testing.T) {
	runNorms(t, func(r *normRank) {
		whole := r.prepareScatter(fewRows)
		a := &r.args
		for _, args := range []*symmem.NormArgs{a, &whole} {
			const quantizedBytes, scaleBytes = 1, 4
			args.Output = symmem.Memory{}
			args.Quant = symmem.QuantPerRow
			args.Quantized = r.alloc(r.pool, quantizedBytes*args.Rows*args.Hidden).Memory()
			args.Scales = r.alloc(r.pool, scaleBytes*args.Rows).Memory()
		}

		r.ok(r.World().ReduceScatterRMSNorm(r.ctx, *a, nil))
		r.fill(a.Input, r.scatteredInput) // the first norm may have changed the input
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
		r.prepareScatter(fewRows)
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
		r.prepareScatter(fewRows)
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
		r.prepareScatter(fewRows)
		call := func() { r.ok(r.World().ReduceScatterRMSNorm(r.ctx, r.args, nil)) }
		call() // the first call may allocate
		const countingRank = 0
		r.expectNoAllocations(countingRank, call)
		r.ok(r.DefaultStream().Synchronize(r.ctx))
	})
}

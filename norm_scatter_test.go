package symmem_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"symmem"
)

// scatter sets r.args to the arguments of a ReduceScatterRMSNorm with rowsPerRank rows on each
// rank. It returns the arguments of an AllReduceRMSNorm of the same input, whose results on every
// rank contain the rows of all ranks.
func (r *normRank) scatter(rowsPerRank int64) (whole symmem.NormArgs) {
	a := &r.args
	allRows := rowsPerRank * int64(r.Size())
	tensor := func(rows int64) symmem.Memory {
		return r.alloc(r.pool, rows*a.Hidden*elementBytes).Memory()
	}
	a.Rows, a.Input = rowsPerRank, tensor(allRows)
	a.Output, a.Residual = tensor(rowsPerRank), tensor(rowsPerRank)
	r.fill(a.Input, r.scatteredInput)
	r.fill(a.Weight, func(i int) float32 { return float32(1 + i%3) })
	first := r.Rank() * int(rowsPerRank*a.Hidden) // element of the whole residual
	residual := func(i int) float32 { return float32(math.Cos(float64(3 * i))) }
	r.fill(a.Residual, func(i int) float32 { return residual(first + i) })
	whole = *a
	whole.Rows, whole.Output, whole.Residual = allRows, tensor(allRows), tensor(allRows)
	r.fill(whole.Residual, residual)
	return whole
}

// scatteredInput returns element i of this rank's input.
func (r *normRank) scatteredInput(i int) float32 {
	return float32(math.Sin(float64(i*i + r.Rank())))
}

const elementBytes = 2 // of the tensors except for quantized ones

// ownRows returns this rank's rows of a tensor with the rows of all ranks.
func (r *normRank) ownRows(m symmem.Memory) []float32 {
	bytes := r.args.Rows * r.args.Hidden * elementBytes
	own, err := m.Slice(int64(r.Rank())*bytes, bytes)
	r.ok(err)
	return r.readNumbers(own)
}

func TestScatteredNormHasBitsOfAllReduce(t *testing.T) {
	for _, rows := range []int64{1, 5, 300} {
		runNorms(t, func(r *normRank) {
			whole := r.scatter(rows)
			r.ok(r.World().ReduceScatterRMSNorm(r.ctx, r.args, nil))
			r.ok(r.World().AllReduceRMSNorm(r.ctx, whole, nil))
			if !slices.Equal(r.readNumbers(r.args.Output), r.ownRows(whole.Output)) {
				r.failf("%d rows on each rank: the output differs from an AllReduceRMSNorm's", rows)
			}
			if !slices.Equal(r.readNumbers(r.args.Residual), r.ownRows(whole.Residual)) {
				r.failf("%d rows on each rank: the residual differs from an AllReduceRMSNorm's", rows)
			}
		})
	}
}

// TestScatteredNormReadsPeersInput computes the norm of more rows than fit into the exchange
// memory of GPUs, so that ranks must read each other's input. Only the input is in symmetric
// memory.
func TestScatteredNormReadsPeersInput(t *testing.T) {
	runNorms(t, func(r *normRank) {
		const rows, hidden = 600, 8192
		a := &r.args
		a.Rows, a.Hidden = rows, hidden
		a.Input = r.alloc(r.rank.pool(), rows*hidden*elementBytes*int64(r.Size())).Memory()
		a.Output = r.alloc(r.pool, rows*hidden*elementBytes).Memory()
		a.Residual = r.alloc(r.pool, rows*hidden*elementBytes).Memory()
		a.Weight = r.alloc(r.pool, hidden*elementBytes).Memory()
		r.fill(a.Input, func(i int) float32 { return float32(i%7 + r.Rank()) })
		r.fill(a.Residual, func(i int) float32 { return float32(i % 5) })
		r.fill(a.Weight, func(int) float32 { return 1 })
		r.ok(r.World().ReduceScatterRMSNorm(r.ctx, *a, nil))
		first := r.Rank() * rows * hidden
		for i, got := range r.readNumbers(a.Residual) {
			// The sum of both ranks' inputs and of the earlier residual.
			want := float32(2*((first+i)%7) + 1 + i%5)
			if got != want {
				r.failf("residual %d = %g, want %g", i, got, want)
			}
		}
	})
}

func TestScatteredNormOnlyQuantizes(t *testing.T) {
	runNorms(t, func(r *normRank) {
		whole := r.scatter(3)
		a := &r.args
		for _, args := range []*symmem.NormArgs{a, &whole} {
			args.Output, args.Quant = symmem.Memory{}, symmem.QuantPerRow
			args.Quantized = r.alloc(r.pool, args.Rows*args.Hidden).Memory()
			args.Scales = r.alloc(r.pool, 4*args.Rows).Memory()
		}
		r.ok(r.World().ReduceScatterRMSNorm(r.ctx, *a, nil))
		r.fill(a.Input, r.scatteredInput)
		r.ok(r.World().AllReduceRMSNorm(r.ctx, whole, nil))
		got := make([]byte, a.Rows*a.Hidden)
		allRows := make([]byte, whole.Rows*a.Hidden)
		s := r.DefaultStream()
		r.ok(errors.Join(s.Copy(symmem.Host(got), a.Quantized),
			s.Copy(symmem.Host(allRows), whole.Quantized), s.Synchronize(r.ctx)))
		want := allRows[r.Rank()*len(got):][:len(got)]
		if !slices.Equal(got, want) {
			r.failf("the quantized rows differ from those of an AllReduceRMSNorm")
		}
	})
}

// TestNormOperationsDiverge calls ReduceScatterRMSNorm on rank 0 and AllReduceRMSNorm on rank 1.
func TestNormOperationsDiverge(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.scatter(3)
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

func TestInvalidScatteredNorms(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.scatter(3)
		inputPart := func(rank int) symmem.Memory { // the rows that the call sums for this rank
			bytes := r.args.Rows * r.args.Hidden * elementBytes
			m, err := r.args.Input.Slice(int64(rank)*bytes, bytes)
			r.ok(err)
			return m
		}
		for _, c := range []struct {
			name   string
			change func(a *symmem.NormArgs)
			want   error
		}{
			{
				"a small input", func(a *symmem.NormArgs) { a.Input = inputPart(0) },
				symmem.ErrOutOfRange,
			},
			{
				"output over this rank's part of the input",
				func(a *symmem.NormArgs) { a.Output = inputPart(r.Rank()) }, nil,
			},
			{
				"output over another rank's part of the input",
				func(a *symmem.NormArgs) { a.Output = inputPart(1 - r.Rank()) }, symmem.ErrInvalid,
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
		r.scatter(3)
		call := func() { r.ok(r.World().ReduceScatterRMSNorm(r.ctx, r.args, nil)) }
		call()
		r.expectNoAllocations(0, call)
		r.ok(r.DefaultStream().Synchronize(r.ctx))
	})
}

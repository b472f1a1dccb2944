package symmem_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"symmem"
)

// scatter sets r.args to a ReduceScatterRMSNorm of rows on each rank, and returns the arguments of
// an AllReduceRMSNorm of all rows.
func (r *normRank) scatter(rows int64) (whole symmem.NormArgs) {
	a := &r.args
	all, bytes := rows*int64(r.Size()), 2*a.Hidden
	tensor := func(rows int64) symmem.Memory { return r.alloc(r.pool, rows*bytes).Memory() }
	a.Rows, a.Input, a.Output, a.Residual = rows, tensor(all), tensor(rows), tensor(rows)
	r.fill(a.Input, func(i int) float32 { return float32(math.Sin(float64(i*i + r.Rank()))) })
	r.fill(a.Weight, func(i int) float32 { return float32(1 + i%3) })
	first := r.Rank() * int(rows*a.Hidden)
	residual := func(i int) float32 { return float32(math.Cos(float64(3 * i))) }
	r.fill(a.Residual, func(i int) float32 { return residual(first + i) })
	whole = *a
	whole.Rows, whole.Output, whole.Residual = all, tensor(all), tensor(all)
	r.fill(whole.Residual, residual)
	return whole
}

// readPart returns this rank's rows of a tensor with the rows of all ranks.
func (r *normRank) readPart(m symmem.Memory) []float32 {
	bytes := 2 * r.args.Rows * r.args.Hidden
	part, err := m.Slice(int64(r.Rank())*bytes, bytes)
	r.ok(err)
	return r.readNumbers(part)
}

func TestScatteredNormHasBitsOfAllReduce(t *testing.T) {
	for _, rows := range []int64{1, 5, 300} {
		runNorms(t, func(r *normRank) {
			whole := r.scatter(rows)
			r.ok(r.World().ReduceScatterRMSNorm(r.ctx, r.args, nil))
			r.ok(r.World().AllReduceRMSNorm(r.ctx, whole, nil))
			if !slices.Equal(r.readNumbers(r.args.Output), r.readPart(whole.Output)) ||
				!slices.Equal(r.readNumbers(r.args.Residual), r.readPart(whole.Residual)) {
				r.failf("%d rows on each rank differ from those of an AllReduceRMSNorm", rows)
			}
		})
	}
}

// TestScatteredNormReadsPeersInput computes more rows than fit into the exchange memory of GPUs.
// Only the input is symmetric.
func TestScatteredNormReadsPeersInput(t *testing.T) {
	runNorms(t, func(r *normRank) {
		const rows, hidden = 600, 8192
		a := &r.args
		a.Rows, a.Hidden = rows, hidden
		a.Input = r.alloc(r.rank.pool(), 2*rows*hidden*int64(r.Size())).Memory()
		a.Output = r.alloc(r.pool, 2*rows*hidden).Memory()
		a.Residual = r.alloc(r.pool, 2*rows*hidden).Memory()
		a.Weight = r.alloc(r.pool, 2*hidden).Memory()
		r.fill(a.Input, func(i int) float32 { return float32(i%7 + r.Rank()) })
		r.fill(a.Residual, func(i int) float32 { return float32(i % 5) })
		r.fill(a.Weight, func(int) float32 { return 1 })
		r.ok(r.World().ReduceScatterRMSNorm(r.ctx, *a, nil))
		first := r.Rank() * rows * hidden
		for i, got := range r.readNumbers(a.Residual) {
			if want := float32(2*((first+i)%7) + 1 + i%5); got != want {
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
		r.fill(a.Input, func(i int) float32 { return float32(math.Sin(float64(i*i + r.Rank()))) })
		r.ok(r.World().AllReduceRMSNorm(r.ctx, whole, nil))
		got, all := make([]byte, a.Rows*a.Hidden), make([]byte, whole.Rows*a.Hidden)
		s := r.DefaultStream()
		r.ok(errors.Join(s.Copy(symmem.Host(got), a.Quantized),
			s.Copy(symmem.Host(all), whole.Quantized), s.Synchronize(r.ctx)))
		if first := r.Rank() * len(got); !slices.Equal(got, all[first:first+len(got)]) {
			r.failf("the quantized rows differ from those of an AllReduceRMSNorm")
		}
	})
}

// TestNormOperationsDiverge lets a rank compute the norm of an all-reduce.
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
		part := func(rank int) symmem.Memory {
			bytes := 2 * r.args.Rows * r.args.Hidden
			m, err := r.args.Input.Slice(int64(rank)*bytes, bytes)
			r.ok(err)
			return m
		}
		for _, c := range []struct {
			name   string
			change func(a *symmem.NormArgs)
			want   error
		}{
			{"a small input", func(a *symmem.NormArgs) { a.Input = part(0) }, symmem.ErrOutOfRange},
			{"this rank's part", func(a *symmem.NormArgs) { a.Output = part(r.Rank()) }, nil},
			{
				"another rank's part", func(a *symmem.NormArgs) { a.Output = part(1 - r.Rank()) },
				symmem.ErrInvalid,
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

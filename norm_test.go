package symmem_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"symmem"
	bits "symmem/internal/reduce"
)

const normEpsilon = 1e-5

type normRank struct {
	*rank
	args symmem.NormArgs
	pool *symmem.Pool // its memory is not registered
}

func runNorms(t *testing.T, f func(r *normRank)) {
	runRanks(t, 2, symmem.Options{Path: symmem.PathAuto}, func(r *rank) {
		n := &normRank{rank: r, pool: r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib})}
		tensor := func(bytes int64) symmem.Memory { return r.alloc(n.pool, bytes).Memory() }
		const rows, hidden = 3, 1024
		n.args = symmem.NormArgs{
			Input: tensor(2 * rows * hidden), Output: tensor(2 * rows * hidden),
			Residual: tensor(2 * rows * hidden), Weight: tensor(2 * hidden),
			Rows: rows, Hidden: hidden, Epsilon: normEpsilon,
		}
		n.fill(n.args.Input, func(i int) float32 { return float32(i%7 - 3 + r.Rank()) })
		n.fill(n.args.Residual, func(i int) float32 { return float32(i % 5) })
		n.fill(n.args.Weight, func(i int) float32 { return float32(1 + i%3) })
		f(n)
	})
}

// fill sets element i of a tensor to number(i), rounded to bfloat16.
func (r *normRank) fill(m symmem.Memory, number func(i int) float32) {
	values := make([]uint16, m.Bytes()/2)
	for i := range values {
		values[i] = bits.BFloat16Bits(number(i))
	}

	s := r.DefaultStream()
	r.ok(errors.Join(s.Copy(m, symmem.Host(values)), s.Synchronize(r.ctx)))
}

// readNumbers reads the first r.args.Rows rows of a tensor.
func (r *normRank) readNumbers(m symmem.Memory) []float32 {
	encoded := make([]uint16, r.args.Rows*r.args.Hidden)
	part, err := m.Slice(0, int64(2*len(encoded)))
	r.ok(err)
	s := r.DefaultStream()
	r.ok(errors.Join(s.Copy(symmem.Host(encoded), part), s.Synchronize(r.ctx)))
	values := make([]float32, len(encoded))
	for i := range encoded {
		values[i] = bits.BFloat16Value(encoded[i])
	}

	return values
}

// TestNormMatchesThreeSteps compares an AllReduceRMSNorm with the sum of the inputs and the
// residual, its root mean square, and the product with the weight.
func TestNormMatchesThreeSteps(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.ok(r.World().AllReduceRMSNorm(r.ctx, r.args, nil))
		sums, norms := r.readNumbers(r.args.Residual), r.readNumbers(r.args.Output)
		hidden := int(r.args.Hidden)
		for row := range int(r.args.Rows) {
			sumOfSquares := 0.0
			for i := row * hidden; i < (row+1)*hidden; i++ {
				inputs, residual := 2*(i%7-3)+1, i%5 // as set by runNorms
				if want := float32(inputs + residual); sums[i] != want {
					r.failf("residual %d = %g, want %g", i, sums[i], want)
				}

				sumOfSquares += float64(sums[i]) * float64(sums[i])
			}

			scale := 1 / math.Sqrt(sumOfSquares/float64(hidden)+normEpsilon)
			for i := row * hidden; i < (row+1)*hidden; i++ {
				weight := float64(1 + i%hidden%3)
				want := float64(sums[i]) * scale * weight
				tolerance := math.Abs(want) / 256 // for the rounding to bfloat16
				if math.Abs(float64(norms[i])-want) > tolerance {
					r.failf("output %d = %g, want %g", i, norms[i], want)
				}
			}
		}

		path := "direct"
		if r.Device().Backend == "host" {
			path = "plain"
		}

		if paths := r.World().Stats().Paths; paths[path] == 0 {
			r.failf("the calls by path are %v, want at least one on the path %s", paths, path)
		}
	})
}

func TestInvalidNorms(t *testing.T) {
	runNorms(t, func(r *normRank) {
		const rowBytes = 2048
		oneRow, err := r.args.Residual.Slice(0, rowBytes)
		r.ok(err)
		misalignedRow, err := r.args.Residual.Slice(8, rowBytes)
		r.ok(err)
		misaligned, err := r.args.Output.Slice(2, 2)
		r.ok(err)
		small := r.alloc(r.pool, 16).Memory()
		for _, c := range []struct {
			name   string
			change func(a *symmem.NormArgs)
			want   error
		}{
			{"rows with a partial vector", func(a *symmem.NormArgs) { a.Hidden = 1020 }, symmem.ErrInvalid},
			{"empty rows", func(a *symmem.NormArgs) { a.Hidden = 0 }, symmem.ErrInvalid},
			{"rows that are too long", func(a *symmem.NormArgs) { a.Hidden = 1 << 15 }, symmem.ErrInvalid},
			{"a negative number of rows", func(a *symmem.NormArgs) { a.Rows = -1 }, symmem.ErrInvalid},
			{
				"an epsilon that is not a number", func(a *symmem.NormArgs) { a.Epsilon = float32(math.NaN()) },
				symmem.ErrInvalid,
			},
			{
				"an output that is the residual", func(a *symmem.NormArgs) { a.Output = a.Residual },
				symmem.ErrInvalid,
			},
			{
				"a weight that is the input", func(a *symmem.NormArgs) { a.Weight = a.Input },
				symmem.ErrInvalid,
			},
			{"a small residual", func(a *symmem.NormArgs) { a.Residual = oneRow }, symmem.ErrOutOfRange},
			{"a small output", func(a *symmem.NormArgs) { a.Output = small }, symmem.ErrOutOfRange},
			{"a misaligned residual", func(a *symmem.NormArgs) {
				a.Residual, a.Rows = misalignedRow, 1
			}, symmem.ErrInvalid},
			{"a misaligned output without rows", func(a *symmem.NormArgs) {
				a.Output, a.Rows, a.Hidden = misaligned, 0, 8
			}, nil},
		} {
			a := r.args
			c.change(&a)
			if err := r.World().AllReduceRMSNorm(r.ctx, a, nil); !errors.Is(err, c.want) {
				r.failf("%s: got %v, want %v", c.name, err, c.want)
			}
		}

		r.ok(r.World().SetPath(r.ctx, symmem.PathPlain))
		var refusal error // on GPUs, the plain path has no norms
		if r.Device().Backend != "host" {
			refusal = symmem.ErrUnsupported
		}

		r.wantErr(r.World().AllReduceRMSNorm(r.ctx, r.args, nil), refusal)
		_, err = r.World().Explain(symmem.OpAllReduceRMSNorm, r.args.Input, r.args.Output, 8,
			symmem.BFloat16)
		r.wantErr(err, symmem.ErrInvalid)
	})
}

func TestDifferentNormsDiverge(t *testing.T) {
	runNorms(t, func(r *normRank) {
		r.args.Epsilon *= float32(1 + r.Rank()) // twice as large on rank 1
		err := r.World().AllReduceRMSNorm(r.ctx, r.args, nil)
		if err == nil {
			err = r.DefaultStream().Synchronize(r.ctx)
		}

		var diverged *symmem.DivergenceError
		if !errors.As(err, &diverged) || !strings.Contains(err.Error(), "epsilon 2e-05") {
			r.failf("got %v, want a DivergenceError that contains epsilon 2e-05", err)
		}
	})
}

func TestNormRejectsFreedResidual(t *testing.T) {
	runNorms(t, func(r *normRank) {
		b := r.alloc(r.rank.pool(), r.args.Residual.Bytes()) // the only buffer of its pool
		r.args.Residual = b.Memory()
		r.ok(r.World().AllReduceRMSNorm(r.ctx, r.args, nil))
		r.ok(r.DefaultStream().Synchronize(r.ctx))
		r.ok(b.Free())
		r.wantErr(r.World().AllReduceRMSNorm(r.ctx, r.args, nil), symmem.ErrFreed)
	})
}

func TestRepeatedNormDoesNotAllocate(t *testing.T) {
	runNorms(t, func(r *normRank) {
		call := func() { r.ok(r.World().AllReduceRMSNorm(r.ctx, r.args, nil)) }
		call()
		r.expectNoAllocations(0, call)
		r.ok(r.DefaultStream().Synchronize(r.ctx))
	})
}

// TestNormRowIndependentOfRowCount checks that the norm of a row has the same bits whether the row
// is computed alone or with other rows, for which GPUs use a different kernel.
func TestNormRowIndependentOfRowCount(t *testing.T) {
	runNorms(t, func(r *normRank) {
		const rows, hidden = 300, 1024
		a := &r.args
		a.Rows = rows
		for _, m := range []*symmem.Memory{&a.Input, &a.Output, &a.Residual} {
			*m = r.alloc(r.pool, 2*rows*hidden).Memory()
		}

		r.fill(a.Weight, func(i int) float32 { return float32(math.Sin(float64(i + 1))) })
		var firstRows [2][]float32 // the output and the residual of the first row, for each count
		for turn, count := range []int64{1, rows} {
			r.fill(a.Input, func(i int) float32 { return float32(math.Sin(float64(i*i + r.Rank()))) })
			r.fill(a.Residual, func(i int) float32 { return float32(math.Cos(float64(3 * i))) })
			a.Rows = count
			r.ok(r.World().AllReduceRMSNorm(r.ctx, *a, nil))
			a.Rows = 1 // for readNumbers
			firstRows[turn] = append(r.readNumbers(a.Output), r.readNumbers(a.Residual)...)
		}

		if !slices.Equal(firstRows[0], firstRows[1]) {
			r.failf("the norm of a single row differs from that of the same row among %d rows", rows)
		}
	})
}

// TestNormOfManyRowsReadsPeerBuffers computes a norm that exceeds the exchange memory of GPUs. The
// call must register its buffers instead.
func TestNormOfManyRowsReadsPeerBuffers(t *testing.T) {
	runNorms(t, func(r *normRank) {
		const rows, hidden = 512, 8192
		a, symmetric := &r.args, r.rank.pool()
		a.Rows, a.Hidden = rows, hidden
		a.Input = r.alloc(symmetric, 2*rows*hidden).Memory()
		a.Output = r.alloc(symmetric, 2*rows*hidden).Memory()
		a.Residual = r.alloc(r.pool, 2*rows*hidden).Memory()
		a.Weight = r.alloc(r.pool, 2*hidden).Memory()
		r.fill(a.Input, func(i int) float32 { return float32(i%7 + r.Rank()) })
		r.fill(a.Residual, func(i int) float32 { return float32(i % 5) })
		r.fill(a.Weight, func(int) float32 { return 1 })
		r.ok(r.World().AllReduceRMSNorm(r.ctx, *a, nil))
		for i, got := range r.readNumbers(a.Residual) {
			if want := float32(2*(i%7) + 1 + i%5); got != want {
				r.failf("residual %d = %g, want %g", i, got, want)
			}
		}

		sumOfSquares := float32(0)
		for _, v := range r.readNumbers(a.Output)[:hidden] {
			sumOfSquares += v * v
		}

		if mean := sumOfSquares / hidden; math.Abs(float64(mean)-1) > 0.01 {
			r.failf("the mean of the squares of row 0 is %g, want 1", mean)
		}
	})
}

func TestNormAtDifferentOffsetsDiverges(t *testing.T) {
	runNorms(t, func(r *normRank) {
		symmetric := r.rank.pool()
		input := r.alloc(symmetric, 2*r.args.Input.Bytes()).Memory()
		r.args.Output = r.alloc(symmetric, r.args.Output.Bytes()).Memory()
		var err error
		r.args.Input, err = input.Slice(16*int64(r.Rank()), r.args.Input.Bytes())
		r.ok(err)
		err = r.World().AllReduceRMSNorm(r.ctx, r.args, nil)
		if err == nil {
			err = r.DefaultStream().Synchronize(r.ctx)
		}

		var diverged *symmem.DivergenceError
		if !errors.As(err, &diverged) {
			r.failf("got %v, want a DivergenceError", err)
		}
	})
}

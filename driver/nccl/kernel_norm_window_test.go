package nccl

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/formula"
)

// A norm is an AllReduce or ReduceScatter followed by RMSNorm of each row. If the inputs are large
// and in windows (memory registered with NCCL), a pull kernel reads the inputs of the other ranks.
// For example, norm_pull_q_bf16_2 sums bfloat16 inputs of 2 ranks and quantizes the result.

// newNormWindows opens a test group whose ranks have norm buffers in windows.
func newNormWindows(
	t *testing.T, ranks int, timeout time.Duration,
) (*testGroup, []normBuffers) {
	t.Helper()
	g := newTestGroup(t, ranks, timeout)
	buffers := make([]normBuffers, len(g.opened))
	g.regroup()
	g.must(func(r *testRank) error {
		const sameOffset = 16
		b, err := newNormBuffersAt(r, sameOffset)
		if err != nil {
			return err
		}

		buffers[r.number] = b
		return r.register(g, b.region, windowName)
	})
	needDirect(t, g.ranks[0].group)
	return g, buffers
}

const perGroupIndex = 2

// pulledNorms lists norms with inputs of more than 7 MiB, for which 2 ranks use a pull kernel.
var pulledNorms = []struct {
	rows     int
	hidden   int // elements of a row
	dataType driver.DataType
	quant    driver.Quant
}{
	{rows: 897, hidden: 4096, dataType: driver.BFloat16, quant: driver.QuantNone},
	{rows: 897, hidden: 4104, dataType: driver.Float16, quant: driver.QuantNone},
	perGroupIndex: {
		rows: 450, hidden: 8192, dataType: driver.BFloat16, quant: driver.QuantPerGroup,
	},
	{rows: 513, hidden: 7168, dataType: driver.Float16, quant: driver.QuantPerRow},
}

// newPulledNorm returns pulledNorms[i] with random inputs.
func newPulledNorm(random *rand.Rand, i int) *formula.NormCase {
	const ranks = 2
	norm := pulledNorms[i]
	c := formula.NewNormCase(random, ranks, norm.rows, norm.hidden, norm.dataType, norm.quant)
	c.InPlace = c.OnlyQuantized // other norms in place do not use a pull kernel
	c.AddSpecialValues(random)
	return c
}

func TestNormsInWindows(t *testing.T) {
	random := newRandom(t)
	g, buffers := newNormWindows(t, 2, time.Minute)
	for i := range pulledNorms {
		g.normalize(buffers, newPulledNorm(random, i))
	}

	g.opened[0].requireKernels(t, []string{
		"norm_pull_bf16_2", "norm_pull_f16_2", "norm_pull_q_bf16_2", "norm_pull_q_f16_2",
	})
}

// scatteredNorms lists norms after a reduce-scatter. Rows of 2056 elements are too short for a pull
// kernel, so a bulk kernel sums them first.
var scatteredNorms = []struct {
	hidden   int // elements of a row
	dataType driver.DataType
	quant    driver.Quant
}{
	{hidden: 4096, dataType: driver.BFloat16, quant: driver.QuantNone},
	{hidden: 4104, dataType: driver.Float16, quant: driver.QuantNone},
	{hidden: 8192, dataType: driver.BFloat16, quant: driver.QuantPerGroup},
	{hidden: 7168, dataType: driver.Float16, quant: driver.QuantPerRow},
	{hidden: 2056, dataType: driver.BFloat16, quant: driver.QuantStatic},
}

func TestScatteredNormsInWindows(t *testing.T) {
	random := newRandom(t)
	for _, ranks := range []int{2, ranksUpTo(t, 4)} {
		g, buffers := newNormWindows(t, ranks, time.Minute)
		for _, norm := range scatteredNorms {
			const maxLineBytes = 2 << 20 // larger outputs use pull or bulk kernels
			const elementBytes = 2
			rows := maxLineBytes/elementBytes/norm.hidden + 1
			c := formula.NewNormCase(random, ranks, rows, norm.hidden, norm.dataType, norm.quant)
			c.AddSpecialValues(random)
			g.normalize(buffers, c.Scatter(random)...)
		}

		if ranks == 3 {
			continue // there are no pull kernels for 3 ranks
		}

		suffix := fmt.Sprintf("_%d", ranks)
		g.opened[0].requireKernels(t, []string{
			"norm_pull_bf16" + suffix, "norm_pull_f16" + suffix, "norm_pull_q_bf16" + suffix,
			"norm_pull_q_f16" + suffix, "bulk_sum_bf16" + suffix,
		})
	}
}

// If a kernel times out, it fills its outputs with poison, a value for missing results.
func TestNormInWindowsTimesOut(t *testing.T) {
	random := newRandom(t)
	g, buffers := newNormWindows(t, 2, time.Second)
	c := newPulledNorm(random, perGroupIndex)
	errs := g.each(func(r *testRank) error {
		if r.rank == 1 {
			return nil
		}

		call, err := buffers[0].prepare(r, c)
		if err != nil {
			return err
		}

		if err := r.launch(r.stream, call); err != nil {
			return err
		}

		return r.stream.Synchronize(t.Context())
	})
	var timeoutErr *driver.TimeoutError
	isTimeout := errors.As(errs[0], &timeoutErr)
	if !isTimeout || !slices.Equal(timeoutErr.Missing, []int{1}) {
		t.Errorf("rank 0: got %v, want a TimeoutError about rank 1", errs[0])
	}

	g.must(func(r *testRank) error {
		if r.rank == 1 {
			return nil
		}

		return buffers[0].checkPoisoned(g, r, c)
	})
}

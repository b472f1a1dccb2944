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

// A norm is an all-reduce or reduce-scatter followed by RMSNorm of each row. If the inputs are in
// windows, memory that is registered with NCCL, pull kernels read large inputs of the other ranks
// there. For example, norm_pull_q_bf16_2 sums bfloat16 inputs of 2 ranks and quantizes the result.

// newNormWindows opens a test group whose ranks have norm buffers in windows.
func newNormWindows(
	t *testing.T, ranks int, timeout time.Duration,
) (*testGroup, []normBuffers) {
	t.Helper()
	w := newTestGroup(t, ranks, timeout)
	buffers := make([]normBuffers, len(w.opened))
	w.regroup()
	w.must(func(m *testRank) error {
		const offset = 16
		d, err := newNormBuffersAt(m, offset)
		if err != nil {
			return err
		}

		buffers[m.number] = d
		return m.register(w, d.region, windowName)
	})
	needDirect(t, w.ranks[0].group)
	return w, buffers
}

// pulledNorms lists norms that are large enough for a pull kernel on 2 ranks.
var pulledNorms = []struct {
	rows     int
	hidden   int // elements of a row
	dataType driver.DataType
	quant    driver.Quant
}{
	{rows: 897, hidden: 4096, dataType: driver.BFloat16, quant: driver.QuantNone},
	{rows: 897, hidden: 4104, dataType: driver.Float16, quant: driver.QuantNone},
	{rows: 450, hidden: 8192, dataType: driver.BFloat16, quant: driver.QuantPerGroup},
	{rows: 513, hidden: 7168, dataType: driver.Float16, quant: driver.QuantPerRow},
}

// newPulledNorm returns pulledNorms[i] with random inputs.
func newPulledNorm(random *rand.Rand, i int) *formula.NormCase {
	const ranks = 2
	norm := pulledNorms[i]
	c := formula.NewNormCase(random, ranks, norm.rows, norm.hidden, norm.dataType, norm.quant)
	c.InPlace = c.OnlyQuantized // always in place
	c.AddSpecialValues(random)
	return c
}

func TestNormsInWindows(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormWindows(t, 2, time.Minute)
	for i := range pulledNorms {
		w.normalize(buffers, newPulledNorm(random, i))
	}

	w.opened[0].requireKernels(t, []string{
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
		w, buffers := newNormWindows(t, ranks, time.Minute)
		for _, norm := range scatteredNorms {
			const maxLineBytes = 2 << 20 // largest part for a line kernel
			const elementBytes = 2
			maxLineRows := maxLineBytes / elementBytes / norm.hidden
			rows := maxLineRows + 1
			c := formula.NewNormCase(random, ranks, rows, norm.hidden, norm.dataType, norm.quant)
			c.AddSpecialValues(random)
			w.normalize(buffers, c.Scatter(random)...)
		}

		if ranks == 3 {
			continue // kernel names end in 2, 4 or 8
		}

		n := fmt.Sprint(ranks)
		w.opened[0].requireKernels(t, []string{
			"norm_pull_bf16_" + n, "norm_pull_f16_" + n, "norm_pull_q_bf16_" + n,
			"norm_pull_q_f16_" + n, "bulk_sum_bf16_" + n,
		})
	}
}

// A kernel that times out fills its outputs with poison, a value for missing results.
func TestNormInWindowsTimesOut(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormWindows(t, 2, time.Second)
	const perGroupIndex = 2
	c := newPulledNorm(random, perGroupIndex)
	errs := w.each(func(m *testRank) error {
		if m.rank == 1 {
			return nil
		}

		call, err := buffers[0].prepare(m, c)
		if err != nil {
			return err
		}

		if err := m.launch(m.stream, call); err != nil {
			return err
		}

		return m.stream.Synchronize(t.Context())
	})
	var timeoutErr *driver.TimeoutError
	isTimeout := errors.As(errs[0], &timeoutErr)
	if !isTimeout || !slices.Equal(timeoutErr.Missing, []int{1}) {
		t.Errorf("rank 0: got %v, want a TimeoutError about rank 1", errs[0])
	}

	w.must(func(m *testRank) error {
		if m.rank == 1 {
			return nil
		}

		return buffers[0].checkPoisoned(w, m, c)
	})
}

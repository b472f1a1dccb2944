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

// newNormWindows opens a test group and returns the norm buffers of its ranks. The buffers are in
// windows, at the same offset on all ranks.
func newNormWindows(
	t *testing.T, ranks int, timeout time.Duration,
) (*testGroup, []normBuffers) {
	t.Helper()
	w := newTestGroup(t, ranks, timeout)
	buffers := make([]normBuffers, len(w.opened))
	w.regroup()
	w.must(func(m *testRank) (err error) {
		d := &buffers[m.number]
		const offset = 16 // any multiple of 16 bytes
		if *d, err = newNormBuffersAt(m, offset); err != nil {
			return err
		}

		return m.register(w, d.region, windowName)
	})
	needDirect(t, w.ranks[0].group)
	return w, buffers
}

// pulledNorms lists norms (an all-reduce, followed by RMSNorm of each row) that use a pull kernel:
// each of 2 ranks reads the other rank's input from the window. Smaller norms use other kernels.
var pulledNorms = []struct {
	rows, hidden int
	dataType     driver.DataType
	quant        driver.Quant
}{
	{897, 4096, driver.BFloat16, driver.QuantNone},
	{897, 4104, driver.Float16, driver.QuantNone},
	{450, 8192, driver.BFloat16, driver.QuantPerGroup},
	{513, 7168, driver.Float16, driver.QuantPerRow},
}

// newPulledNorm returns pulledNorms[i] with random inputs.
func newPulledNorm(random *rand.Rand, i int) *formula.NormCase {
	const ranks = 2
	norm := pulledNorms[i]
	c := formula.NewNormCase(random, ranks, norm.rows, norm.hidden, norm.dataType, norm.quant)
	c.InPlace = c.OnlyQuantized // a call with OnlyQuantized is always in place
	c.AddSpecialValues(random)
	return c
}

// TestNormsInWindows checks the outputs of the pulledNorms, and that pull kernels computed them.
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

// TestScatteredNormsInWindows is TestNormsInWindows for ReduceScatterRMSNorm. Rows of 2056
// elements are too short for a pull kernel, and need two kernels.
func TestScatteredNormsInWindows(t *testing.T) {
	random := newRandom(t)
	for _, ranks := range []int{2, ranksUpTo(t, 4)} {
		w, buffers := newNormWindows(t, ranks, time.Minute)
		for _, norm := range []struct {
			hidden   int
			dataType driver.DataType
			quant    driver.Quant
		}{
			{4096, driver.BFloat16, driver.QuantNone},
			{4104, driver.Float16, driver.QuantNone},
			{8192, driver.BFloat16, driver.QuantPerGroup},
			{7168, driver.Float16, driver.QuantPerRow},
			{2056, driver.BFloat16, driver.QuantStatic},
		} {
			const maxLineBytes = 2 << 20 // line kernels handle parts up to this size
			const elementBytes = 2
			rows := maxLineBytes/elementBytes/norm.hidden + 1 // just too many for line kernels
			c := formula.NewNormCase(random, ranks, rows, norm.hidden, norm.dataType, norm.quant)
			c.AddSpecialValues(random)
			w.normalize(buffers, c.Scatter(random)...)
		}

		if ranks == 3 {
			continue // no kernel names end in 3
		}

		n := fmt.Sprint(ranks)
		w.opened[0].requireKernels(t, []string{
			"norm_pull_bf16_" + n, "norm_pull_f16_" + n, "norm_pull_q_bf16_" + n,
			"norm_pull_q_f16_" + n, "bulk_sum_bf16_" + n,
		})
	}
}

// TestNormInWindowsTimesOut launches a norm only on rank 0. The call must return a TimeoutError
// about rank 1, and poison its outputs.
func TestNormInWindowsTimesOut(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormWindows(t, 2, time.Second)
	c := newPulledNorm(random, 2)
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
	if !errors.As(errs[0], &timeoutErr) || !slices.Equal(timeoutErr.Missing, []int{1}) {
		t.Errorf("rank 0: got %v, want a TimeoutError about rank 1", errs[0])
	}

	w.must(func(m *testRank) error {
		if m.rank == 1 {
			return nil
		}

		return buffers[0].checkPoisoned(w, m, c)
	})
}

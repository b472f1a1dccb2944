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

// newNormWindows opens a test group with norm buffers in a window, at the same offset on all ranks.
func newNormWindows(
	t *testing.T, ranks int, timeout time.Duration,
) (*testGroup, []normBuffers) {
	t.Helper()
	w := newTestGroup(t, ranks, timeout)
	buffers := make([]normBuffers, len(w.opened))
	w.regroup()
	w.must(func(m *testRank) (err error) {
		d := &buffers[m.number]
		if *d, err = newNormBuffersAt(m, 16); err != nil {
			return err
		}
		return m.register(w, d.region, 1)
	})
	needDirect(t, w.ranks[0].group)
	return w, buffers
}

// pulledNorms lists calls in windows for which each of 2 ranks reads the other rank's rows.
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

func pulledNorm(random *rand.Rand, i int) *formula.NormCase {
	c := pulledNorms[i]
	s := formula.NewNormCase(random, 2, c.rows, c.hidden, c.dataType, c.quant)
	s.InPlace = s.OnlyQuantized
	s.AddSpecialValues(random)
	return s
}

// TestNormsInWindows is TestNormsAreCorrect for many rows in windows.
func TestNormsInWindows(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormWindows(t, 2, time.Minute)
	for i := range pulledNorms {
		w.normalize(buffers, pulledNorm(random, i))
	}
	w.opened[0].requireKernels(t, []string{
		"norm_pull_bf16_2", "norm_pull_f16_2", "norm_pull_q_bf16_2", "norm_pull_q_f16_2",
	})
}

// TestScatteredNormsInWindows is TestNormsInWindows for ReduceScatterRMSNorm. Rows of 2056 elements
// take two kernels.
func TestScatteredNormsInWindows(t *testing.T) {
	random := newRandom(t)
	for _, ranks := range []int{2, ranksUpTo(t, 4)} {
		w, buffers := newNormWindows(t, ranks, time.Minute)
		for i, hidden := range []int{4096, 4104, 8192, 7168, 2056} {
			dataType, quant := driver.BFloat16, driver.Quant([]int{0, 0, 3, 2, 1}[i])
			if i%2 == 1 {
				dataType = driver.Float16
			}
			const minBytes = 2 << 20 // larger parts do not go in lines
			s := formula.NewNormCase(random, ranks, minBytes/2/hidden+1, hidden, dataType, quant)
			s.AddSpecialValues(random)
			w.normalize(buffers, s.Scatter(random)...)
		}
		if ranks == 3 {
			continue
		}
		n := fmt.Sprint(ranks)
		w.opened[0].requireKernels(t, []string{
			"norm_pull_bf16_" + n, "norm_pull_f16_" + n, "norm_pull_q_bf16_" + n,
			"norm_pull_q_f16_" + n, "bulk_sum_bf16_" + n,
		})
	}
}

func TestNormInWindowsTimesOut(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormWindows(t, 2, time.Second)
	s := pulledNorm(random, 2)
	errs := w.each(func(m *testRank) error {
		if m.rank == 1 {
			return nil
		}
		call, err := buffers[0].prepare(m, s)
		if err == nil {
			err = m.launch(m.stream, call)
		}
		return errors.Join(err, m.stream.Synchronize(t.Context()))
	})
	var timeoutErr *driver.TimeoutError
	if !errors.As(errs[0], &timeoutErr) || !slices.Equal(timeoutErr.Missing, []int{1}) {
		t.Errorf("rank 0: got %v, want a TimeoutError about rank 1", errs[0])
	}
	w.must(func(m *testRank) error {
		if m.rank == 1 {
			return nil
		}
		return buffers[0].checkPoisoned(w, m, s)
	})
}

package kernels

import (
	"strings"
	"testing"

	"symmem/driver"
)

// norms lists norms and the kernels of their all-reduces.
var norms = []struct {
	name         string
	ranks        int
	rows, hidden int64
	kernel       string // or a part of the error
}{
	{"few rows", 2, 1, 8192, "line_sum_bf16_2"},
	{"no rows", 4, 0, 1024, "line_sum_bf16_4"},
	{"many rows", 4, 17, 8192, "line_two_shot_bf16_4"},
	{"3 ranks use the kernel for up to 8", 3, 100, 2048, "line_two_shot_bf16_8"},
	{"too many rows", 2, 1000, 8192, "do not fit into exchange memory"},
	{"9 ranks", 9, 1, 8192, "for 9 ranks"},
}

func TestChooseNorms(t *testing.T) {
	for _, c := range norms {
		l, err := choose(normOf(c.ranks, c.rows*c.hidden))
		switch {
		case err != nil && !strings.Contains(err.Error(), c.kernel):
			t.Errorf("%s: got %v, want %s", c.name, err, c.kernel)
		case err == nil && l.Kernel != c.kernel:
			t.Errorf("%s: got %s, want %s", c.name, l.Kernel, c.kernel)
		}
	}
}

func normOf(ranks int, count int64) Launch {
	return Launch{
		Call: &driver.Call{
			Operation: driver.AllReduceRMSNorm, DataType: driver.BFloat16, Count: count,
		},
		Ranks: ranks, Multiprocessors: 132,
	}
}

// TestNormsUseTheKernelOfTheAllReduce compares a norm with an all-reduce of the same size. If the
// all-reduce is split into pieces, the norm is refused.
func TestNormsUseTheKernelOfTheAllReduce(t *testing.T) {
	for _, count := range []int64{0, 8, 1 << 12, 1 << 17, 1 << 22} {
		for _, symmetric := range []bool{false, true} {
			r := normOf(4, count)
			r.Symmetric = symmetric
			norm, refused := choose(r)
			r.Operation = driver.AllReduce
			sum, err := choose(r)
			if sum.Pieces > 1 {
				err = errNoKernel
			}
			if (refused == nil) != (err == nil) || err == nil && norm != sum {
				t.Errorf("%d elements, symmetric %v: %+v (%v), want %+v (%v)", count, symmetric, norm,
					refused, sum, err)
			}
		}
	}
}

// TestLargestNorm chooses kernels for the largest norm that fits, and for a norm with one more row.
func TestLargestNorm(t *testing.T) {
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for hidden := int64(driver.NormUnit); hidden <= driver.MaxHidden; hidden *= 2 {
			limit := twoShotLimit(ranks) / (hidden * int64(driver.BFloat16.Size()))
			for rows, fits := range map[int64]bool{limit: true, limit + 1: false} {
				if _, err := choose(normOf(ranks, rows*hidden)); (err == nil) != fits {
					t.Errorf("%d rows of %d on %d ranks: %v", rows, hidden, ranks, err)
				}
			}
		}
	}
}

func TestGridsOfRows(t *testing.T) {
	for _, c := range []struct {
		name            string
		rows, hidden    int64
		blocks, threads int
		overlaps        bool
		kernel          string
	}{
		{"one block per row", 1, 8192, 1, 512, true, longKernel},
		{"one thread per 16 bytes", 3, 2048, 3, 256, true, longKernel},
		{"whole warps", 3, 264, 3, 64, true, longKernel},
		{"no rows still need a block", 0, 1024, 1, 128, true, longKernel},
		{"a quarter of the GPU overlaps", 33, 8192, 33, 512, true, longKernel},
		{"more does not, with two rows per multiprocessor", 34, 8192, 34, 512, false, shortKernel},
		{"or one long row", 34, 8200, 34, 512, false, longKernel},
		{"many small blocks overlap", 132, 1024, 132, 128, true, longKernel},
	} {
		l := Local{Norm: driver.Norm{Rows: c.rows, Hidden: c.hidden}}
		if blocks, threads := l.Grid(); blocks != c.blocks || threads != c.threads {
			t.Errorf("%s: got %d blocks of %d threads, want %d of %d", c.name, blocks, threads, c.blocks,
				c.threads)
		}
		if l.Overlaps(132) != c.overlaps {
			t.Errorf("%s: Overlaps returned %v", c.name, !c.overlaps)
		}
		if kernel := l.Kernel(c.overlaps); kernel != c.kernel {
			t.Errorf("%s: got %s, want %s", c.name, kernel, c.kernel)
		}
	}
}

package kernels

import (
	"strings"
	"testing"

	"symmem/driver"
)

// norms say which kernel the sums of rows get.
var norms = []struct {
	sentence     string
	ranks        int
	rows, hidden int64
	kernel       string // or what is wrong
}{
	{"few rows are summed in one step", 2, 1, 8192, "line_sum_bf16_2"},
	{"no rows, too", 4, 0, 1024, "line_sum_bf16_4"},
	{"more in two", 4, 17, 8192, "line_two_shot_bf16_4"},
	{"three ranks have the kernel of up to eight", 3, 100, 2048, "line_two_shot_bf16_8"},
	{"what does not fit is refused", 2, 1000, 8192, "do not fit into exchange memory"},
	{"and nine ranks are", 9, 1, 8192, "for 9 ranks"},
}

func TestChooseNorms(t *testing.T) {
	for _, c := range norms {
		l, err := choose(normOf(c.ranks, c.rows*c.hidden))
		switch {
		case err != nil && !strings.Contains(err.Error(), c.kernel):
			t.Errorf("%s: got %v, want %s", c.sentence, err, c.kernel)
		case err == nil && l.Kernel != c.kernel:
			t.Errorf("%s: got %s, want %s", c.sentence, l.Kernel, c.kernel)
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

// TestNormsBeginAsSums compares with the launch of an all-reduce of as many elements. Where the
// all-reduce goes in pieces, the norm is refused.
func TestNormsBeginAsSums(t *testing.T) {
	for _, count := range []int64{0, 8, 1 << 12, 1 << 17, 1 << 22} {
		for _, symmetric := range []bool{false, true} {
			r := normOf(4, count)
			r.Symmetric = symmetric
			norm, refused := choose(r)
			r.Operation = driver.AllReduce
			sum, err := choose(r)
			if sum.Pieces > 1 {
				err = errNone
			}
			if (refused == nil) != (err == nil) || err == nil && norm != sum {
				t.Errorf("%d elements, symmetric %v: %+v (%v), want %+v (%v)", count, symmetric, norm,
					refused, sum, err)
			}
		}
	}
}

// TestRowsFitUpToTheirLimit looks at both sides of the limit.
func TestRowsFitUpToTheirLimit(t *testing.T) {
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for hidden := int64(driver.NormUnit); hidden <= driver.MaxHidden; hidden *= 2 {
			limit := twoStepLimit(ranks) / (hidden * int64(driver.BFloat16.Size()))
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
		sentence        string
		rows, hidden    int64
		blocks, threads int
		overlaps        bool
		kernel          string
	}{
		{"a row has a block", 1, 8192, 1, 512, true, longKernel},
		{"of a thread for 16 bytes", 3, 2048, 3, 256, true, longKernel},
		{"and whole warps", 3, 264, 3, 64, true, longKernel},
		{"no rows have one, too", 0, 1024, 1, 128, true, longKernel},
		{"a quarter of the GPU may wait", 33, 8192, 33, 512, true, longKernel},
		{"more has to come later, two rows to a multiprocessor", 34, 8192, 34, 512, false, shortKernel},
		{"or one if they are longer", 34, 8200, 34, 512, false, longKernel},
		{"of small blocks more may wait", 132, 1024, 132, 128, true, longKernel},
	} {
		l := Local{Norm: driver.Norm{Rows: c.rows, Hidden: c.hidden}}
		if blocks, threads := l.Grid(); blocks != c.blocks || threads != c.threads {
			t.Errorf("%s: got %d blocks of %d threads", c.sentence, blocks, threads)
		}
		if l.Overlaps(132) != c.overlaps {
			t.Errorf("%s: it may overlap: %v", c.sentence, !c.overlaps)
		}
		if kernel := l.Kernel(c.overlaps); kernel != c.kernel {
			t.Errorf("%s: got %s", c.sentence, kernel)
		}
	}
}

package kernels

import (
	"strings"
	"testing"

	"symmem/driver"
)

// norms tell which kernel rows get, and which grid.
var norms = []struct {
	sentence        string
	ranks           int
	rows, hidden    int64
	kernel          string // or what is wrong
	blocks, threads int
}{
	{"a row has a block", 2, 1, 8192, "norm_one_shot_bf16_2", 1, 512},
	{"short rows have small ones", 4, 3, 240, "norm_one_shot_bf16_4", 3, 96},
	{"no rows have one that speaks alone", 4, 0, 1024, "norm_one_shot_bf16_4", 1, 320},
	{"more bytes go in two steps", 4, 11, 8192, "norm_two_shot_bf16_4", 3, 512},
	{"of two ranks later", 2, 12, 8192, "norm_one_shot_bf16_2", 12, 512},
	{"three ranks have the kernel of up to eight", 3, 90, 2048, "norm_two_shot_bf16_8", 30, 512},
	{"what does not fit is refused", 2, 1000, 8192, "exchange memory holds", 0, 0},
	{"and nine ranks are", 9, 1, 8192, "for 9 ranks", 0, 0},
}

func TestChooseNorms(t *testing.T) {
	for _, c := range norms {
		l, err := Choose(&Request{
			Operation: driver.AllReduceRMSNorm, DataType: driver.BFloat16, Ranks: c.ranks, Blocks: 132,
			Count: c.rows * c.hidden, Norm: &driver.Norm{Rows: c.rows, Hidden: c.hidden},
		})
		switch {
		case err != nil && !strings.Contains(err.Error(), c.kernel):
			t.Errorf("%s: got %v, want %s", c.sentence, err, c.kernel)
		case err == nil && (l.Kernel != c.kernel || l.Blocks != c.blocks || l.Threads != c.threads):
			t.Errorf("%s: got %s of %d blocks of %d threads", c.sentence, l.Kernel, l.Blocks, l.Threads)
		}
	}
}

// TestRowsFitUpToTheirLimit looks at both sides of the limit, and at the end of exchange memory
// there.
func TestRowsFitUpToTheirLimit(t *testing.T) {
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for hidden := int64(driver.NormUnit); hidden <= driver.MaxHidden; hidden *= 2 {
			r := Request{
				Operation: driver.AllReduceRMSNorm, DataType: driver.BFloat16, Ranks: ranks, Blocks: 132,
			}
			limit := r.RowLimit(hidden)
			for rows, fits := range map[int64]bool{limit: true, limit + 1: false} {
				r.Norm = &driver.Norm{Rows: rows, Hidden: hidden}
				l, err := Choose(&r)
				if (err == nil) != fits {
					t.Errorf("%d rows of %d on %d ranks: %v", rows, hidden, ranks, err)
				}
				perRow := int64(ranks) * chunks(2*hidden) * chunkBytes
				twoShot := strings.Contains(l.Kernel, "two_shot") && r.sets(rows)*perRow > halfBytes/2
				oneShot := strings.Contains(l.Kernel, "one_shot") && rows*perRow > halfBytes
				if twoShot || oneShot {
					t.Errorf("%s for %d rows of %d on %d ranks does not fit", l.Kernel, rows, hidden, ranks)
				}
			}
		}
	}
}

package kernels

import (
	"fmt"
	"strings"
	"testing"

	"symmem/driver"
)

// norms lists norms in memory outside windows, and the kernels that must be chosen for them.
var norms = []struct {
	name         string
	ranks        int
	rows, hidden int64
	want         string // name of the kernel, or part of the error
}{
	{"few rows", 2, 1, 7168, "norm_bf16_2"},
	{"few long rows", 2, 1, 8192, "line_sum_bf16_2"},
	{"few long rows on 4 ranks", 4, 15, 7168, "line_sum_bf16_4"},
	{"short rows, two for each block", 2, 256, 2048, "norm_bf16_2"},
	{"more short rows", 2, 257, 2048, "line_sum_bf16_2"},
	{"more short rows on 4 ranks", 4, 257, 2048, "norm_two_shot_bf16_4"},
	{"no rows", 4, 0, 1024, "norm_bf16_4"},
	{"many rows", 4, 17, 8192, "norm_two_shot_bf16_4"},
	{"3 ranks use the kernel for up to 8", 3, 100, 2048, "norm_two_shot_bf16_8"},
	{"too many rows", 2, 1000, 8192, "do not fit into exchange memory"},
	{"9 ranks", 9, 1, 8192, "for 9 ranks"},
}

func TestChooseNorms(t *testing.T) {
	for _, c := range norms {
		l, err := choose(normOf(c.ranks, c.rows, c.hidden))
		switch {
		case err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: got the error %v, want %s", c.name, err, c.want)
		case err == nil && l.Kernel != c.want:
			t.Errorf("%s: got the kernel %s, want %s", c.name, l.Kernel, c.want)
		}
	}
}

// normOf returns a norm on GPUs with 132 multiprocessors. Its buffers are in no windows.
func normOf(ranks int, rows, hidden int64) Launch {
	return Launch{
		Call: &driver.Call{
			Operation: driver.AllReduceRMSNorm, DataType: driver.BFloat16, Count: rows * hidden,
			Norm: &driver.Norm{Rows: rows, Hidden: hidden},
		},
		Ranks: ranks, Multiprocessors: 132,
	}
}

// symmetricNormOf returns a norm like normOf, but with both buffers in windows.
func symmetricNormOf(ranks int, rows, hidden int64) Launch {
	l := normOf(ranks, rows, hidden)
	l.Symmetric, l.Send, l.Recv = true, 1<<20, 1<<40
	return l
}

// scattered returns l as a ReduceScatterRMSNorm with the same number of rows on each rank.
func scattered(l Launch) Launch {
	l.Operation = driver.ReduceScatterRMSNorm
	return l
}

func TestChooseScatteredNorms(t *testing.T) {
	for _, c := range []struct {
		name            string
		launch          Launch
		want            string // name of the kernel, or part of the error
		blocks, threads int
	}{
		{"one row", normOf(2, 1, 4096), "norm_scatter_bf16_2", 1, 19 * warp},
		{"peers share the warps", normOf(4, 1, 1024), "norm_scatter_bf16_4", 1, 16 * warp},
		{"a few long rows", normOf(4, 15, 16384), "norm_scatter_bf16_4", 15, 32 * warp},
		{"more rows than blocks", normOf(8, 150, 4096), "norm_scatter_bf16_8", 128, 32 * warp},
		{"rows that do not fit", normOf(4, 1000, 8192), "do not fit into exchange memory", 0, 0},
		{"2 MiB in windows", symmetricNormOf(4, 256, 4096), "norm_scatter_bf16_4", 128, 32 * warp},
		{"more in windows", symmetricNormOf(4, 257, 4096), "norm_pull_bf16_4", 128, 512},
		{"2 ranks", symmetricNormOf(2, 257, 8192), "norm_pull_bf16_2", 128, 1024},
		{"3 ranks", symmetricNormOf(3, 257, 8192), "bulk_sum_bf16_8", 128, 512},
		{"short rows", symmetricNormOf(4, 2000, 2048), "bulk_sum_bf16_4", 128, 512},
	} {
		l, err := choose(scattered(c.launch))
		switch {
		case err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: Choose = %v, want %s", c.name, err, c.want)
		case err == nil && (l.Kernel != c.want || l.Blocks != c.blocks || l.Threads != c.threads):
			t.Errorf("%s: got %s with %d blocks of %d threads, want %s with %d of %d", c.name, l.Kernel,
				l.Blocks, l.Threads, c.want, c.blocks, c.threads)
		}
	}
}

// TestNormsBeyond32BitsAreRefused checks numbers of rows that arguments of kernels cannot hold.
func TestNormsBeyond32BitsAreRefused(t *testing.T) {
	for _, rows := range []int64{1 << 31, 1 << 32} {
		all := symmetricNormOf(2, rows, driver.NormUnit)
		for _, l := range []Launch{all, scattered(symmetricNormOf(2, rows, driver.NormUnit))} {
			want := fmt.Sprintf("for %d rows", rows)
			if l, err := choose(l); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v of %d rows: got %s, %v, want an error with %q", l.Operation, rows, l.Kernel, err,
					want)
			}
		}
	}
}

// TestScatteredNormsInPlaceArePulled checks that an output in this rank's part of the input does
// not matter, because peers do not read that part.
func TestScatteredNormsInPlaceArePulled(t *testing.T) {
	l := scattered(symmetricNormOf(4, 257, 4096))
	l.Rank, l.Recv = 1, l.Send+uintptr(2*l.Count)
	if l, err := choose(l); err != nil || l.Kernel != "norm_pull_bf16_4" {
		t.Errorf("in place: got %s, %v, want norm_pull_bf16_4", l.Kernel, err)
	}
}

func TestChooseNormsInWindows(t *testing.T) {
	for _, c := range []struct {
		name            string
		ranks           int
		rows, hidden    int64
		want            string
		blocks, threads int
		change          func(*Launch)
	}{
		{"few rows", 2, 16, 8192, "norm_bf16_2", 16, 1024, nil},
		{"largest number of rows for line kernels", 2, 896, 4096, "norm_bf16_2", 128, 608, nil},
		{"2 ranks", 2, 897, 4096, "norm_pull_bf16_2", 128, 512, nil},
		{
			"2 ranks, fewer multiprocessors", 2, 1000, 8192, "norm_pull_bf16_2", 100, 1024,
			func(l *Launch) { l.Multiprocessors = 100 },
		},
		{
			"2 ranks in place", 2, 1000, 8192, "bulk_two_shot_bf16_2", 128, 512,
			func(l *Launch) { l.Recv = l.Send },
		},
		{
			"2 ranks, only quantized", 2, 1000, 8192, "norm_pull_q_bf16_2", 128, 1024,
			func(l *Launch) {
				l.Recv, l.Norm.Quant, l.Norm.OnlyQuantized = l.Send, driver.QuantPerRow, true
			},
		},
		{"3 ranks", 3, 1024, 8192, "bulk_two_shot_bf16_8", 128, 512, nil},
		{"4 ranks", 4, 8192, 7168, "bulk_two_shot_bf16_4", 128, 512, nil},
		{"short rows", 2, 8192, 4088, "bulk_two_shot_bf16_2", 128, 512, nil},
		{"long rows", 2, 8192, 8200, "bulk_two_shot_bf16_2", 128, 512, nil},
	} {
		l := symmetricNormOf(c.ranks, c.rows, c.hidden)
		if c.change != nil {
			c.change(&l)
		}
		l, err := choose(l)
		if err != nil || l.Kernel != c.want || l.Blocks != c.blocks || l.Threads != c.threads {
			t.Errorf("%s: got %s with %d blocks of %d threads, %v; want %s with %d blocks of %d", c.name,
				l.Kernel, l.Blocks, l.Threads, err, c.want, c.blocks, c.threads)
		}
	}
}

// TestLargeNormsUseTheKernelOfTheAllReduce checks that a norm accesses the buffers of peers if and
// only if an all-reduce of the same size does.
func TestLargeNormsUseTheKernelOfTheAllReduce(t *testing.T) {
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for rows := int64(1); rows <= 8192; rows *= 2 {
			r := symmetricNormOf(ranks, rows, 8192)
			norm, err := choose(r)
			r.Operation = driver.AllReduce
			sum, sumErr := choose(r)
			same := norm.Bulk == sum.Bulk && (!norm.Bulk || norm.Fused || norm.Kernel == sum.Kernel)
			if err != nil || sumErr != nil || !same {
				t.Errorf("%d rows on %d ranks: Choose chose %+v, %v; want the kernel of %+v, %v", rows,
					ranks, norm, err, sum, sumErr)
			}
		}
	}
}

// TestNormsFitIntoExchangeMemory checks that every fused norm fits into half of the exchange
// memory.
func TestNormsFitIntoExchangeMemory(t *testing.T) {
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for hidden := int64(driver.NormUnit); hidden <= driver.MaxHidden; hidden = hidden*3/2 + 1 {
			hidden := hidden / driver.NormUnit * driver.NormUnit
			for rows := int64(1); rows < 1<<20; rows = rows*3/2 + 1 {
				l, err := choose(normOf(ranks, rows, hidden))
				if err != nil {
					break
				}
				s, err := choose(scattered(normOf(ranks, rows, hidden)))
				if lines := rows * int64(ranks) * countChunks(2*hidden, wideLines) * wideLines *
					lineBytes; err == nil && s.Fused && lines > halfBytes {
					t.Errorf("%d scattered rows of %d on %d ranks need %d bytes of lines, want at most %d",
						rows, hidden, ranks, lines, halfBytes)
				}
				part, halves := 2*hidden, int64(1)
				if strings.Contains(l.Kernel, "two_shot") {
					part, halves = (hidden/8+int64(ranks)-1)/int64(ranks)*16, 2
				}
				used := halves * rows * int64(ranks) * countChunks(part, wideLines) * wideLines * lineBytes
				if l.Fused && used > halfBytes {
					t.Errorf("%d rows of %d on %d ranks need %d bytes of lines, want at most %d", rows, hidden,
						ranks, used, halfBytes)
				}
			}
		}
	}
}

// TestGridsOfRows checks that a block has enough threads to move and normalize a row.
func TestGridsOfRows(t *testing.T) {
	for _, c := range []struct {
		ranks           int
		rows, hidden    int64
		blocks, threads int
	}{
		{2, 0, 1024, 1, 6 * warp},
		{2, 3, 1024, 3, 6 * warp},
		{4, 1, 4096, 1, 19 * warp},
		{2, 16, 8192, 16, 32 * warp},
		{4, 100, 4096, 100, 21 * warp},
		{2, 300, 4096, 128, 19 * warp},
		{8, 1, driver.NormUnit, 1, 2 * warp},
	} {
		l, err := choose(normOf(c.ranks, c.rows, c.hidden))
		if err != nil || l.Blocks != c.blocks || l.Threads != c.threads {
			t.Errorf("%d rows of %d on %d ranks: got %d blocks of %d threads, %v; want %d of %d", c.rows,
				c.hidden, c.ranks, l.Blocks, l.Threads, err, c.blocks, c.threads)
		}
	}
}

// TestLocalSteps checks the second kernel of a norm in symmetric memory.
func TestLocalSteps(t *testing.T) {
	l := normOf(4, 100, 8192)
	l.Norm.Quant = driver.QuantPerRow
	for overlaps, rows := range map[bool]int64{true: 33, false: 34} {
		l.Norm.Rows = rows
		s := newLocalStep(&l, &Transport{CanOverlap: true})
		if s.Kernel != "norm_local_q_bf16" || !s.Local || s.Blocks != int(rows) ||
			s.Threads != maxRowThreads || s.CanOverlap != overlaps {
			t.Errorf("newLocalStep for %d rows = %+v, want CanOverlap = %t", rows, s, overlaps)
		}
	}
}

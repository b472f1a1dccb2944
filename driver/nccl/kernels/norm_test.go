package kernels

import (
	"fmt"
	"strings"
	"testing"

	"symmem/driver"
)

// norms lists norms in memory outside windows, and the kernels that must be chosen for them. A
// norm adds up the rows of all ranks and normalizes the sums. A fused kernel (norm_...) does both.
// The other kernels compute only the sums.
var norms = []struct {
	name         string
	ranks        int
	rows, hidden int64  // hidden is the number of elements in a row
	want         string // name of the kernel, or part of the error
}{
	// name, ranks, rows, hidden, want
	{"few rows", 2, 1, 7168, "norm_bf16_2"},
	{"few long rows", 2, 1, 8192, "line_sum_bf16_2"},
	{"few long rows on 4 ranks", 4, 15, 7168, "line_sum_bf16_4"},
	{"short rows, two for each block", 2, 256, 2048, "norm_bf16_2"}, // of 128 blocks
	{"more short rows", 2, 257, 2048, "line_sum_bf16_2"},
	{"more short rows on 4 ranks", 4, 257, 2048, "norm_two_shot_bf16_4"},
	{"no rows", 4, 0, 1024, "norm_bf16_4"},
	{"many rows", 4, 17, 8192, "norm_two_shot_bf16_4"},
	{"3 ranks use the kernel for up to 8", 3, 100, 2048, "norm_two_shot_bf16_8"},
	{"too many rows", 2, 1000, 8192, "do not fit into exchange memory"},
	{"9 ranks", 9, 1, 8192, "for 9 ranks"},
}

// TestChooseNorms checks the choice of a kernel for each entry of norms.
func TestChooseNorms(t *testing.T) {
	for _, c := range norms {
		l, err := choose(normOf(c.ranks, c.rows, c.hidden))
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got the error %q, want %q", c.name, err, c.want)
			}

			continue
		}

		if l.Kernel != c.want {
			t.Errorf("%s: got the kernel %s, want %q", c.name, l.Kernel, c.want)
		}
	}
}

// normOf returns a norm of bfloat16 on H200 GPUs. Its buffers are in no windows.
func normOf(ranks int, rows, hidden int64) Launch {
	return Launch{
		Call: &driver.Call{
			Operation: driver.AllReduceRMSNorm, DataType: driver.BFloat16, Count: rows * hidden,
			Norm: &driver.Norm{Rows: rows, Hidden: hidden},
		},
		Ranks: ranks, Multiprocessors: multiprocessorsOfH200,
	}
}

// symmetricNormOf returns a norm like normOf, but with both buffers in windows.
func symmetricNormOf(ranks int, rows, hidden int64) Launch {
	l := normOf(ranks, rows, hidden)
	l.Symmetric, l.Send, l.Recv = true, 1<<20, 1<<40 // buffers that do not overlap
	return l
}

// scattered returns l as a ReduceScatterRMSNorm with the same number of rows on each rank.
func scattered(l Launch) Launch {
	l.Operation = driver.ReduceScatterRMSNorm
	return l
}

// TestChooseScatteredNorms checks the choice of a kernel for ReduceScatterRMSNorm. Unless the
// comment of an entry gives another reason, a block has a warp for each chunk of 480 bytes that it
// sends to a peer, at most 31, and one warp for headers.
func TestChooseScatteredNorms(t *testing.T) {
	const none = 0 // the call is refused
	for _, c := range []struct {
		name            string
		launch          Launch
		want            string // name of the kernel, or part of the error
		blocks, threads int    // threads of a block
	}{
		// 8192 bytes of a row take 18 chunks.
		{"one row", normOf(2, 1, 4096), "norm_scatter_bf16_2", 1, (18 + 1) * warp},
		// 2048 bytes of a row take 5 chunks, for each of 3 peers.
		{"peers share the warps", normOf(4, 1, 1024), "norm_scatter_bf16_4", 1, (3*5 + 1) * warp},
		{"a few long rows", normOf(4, 15, 16384), "norm_scatter_bf16_4", 15, (31 + 1) * warp},
		{"more rows than blocks", normOf(8, 150, 4096), "norm_scatter_bf16_8", 128, (31 + 1) * warp},
		{"rows that do not fit", normOf(4, 1000, 8192), "do not fit into exchange memory", none, none},
		{
			"2 MiB in windows", symmetricNormOf(4, 256, 4096), "norm_scatter_bf16_4", 128,
			(31 + 1) * warp,
		},
		// Pull kernels have a thread for each 8 elements of a row, and bulk kernels 512 threads.
		{"more in windows", symmetricNormOf(4, 257, 4096), "norm_pull_bf16_4", 128, 4096 / 8},
		{"2 ranks", symmetricNormOf(2, 257, 8192), "norm_pull_bf16_2", 128, 8192 / 8},
		{"3 ranks", symmetricNormOf(3, 257, 8192), "bulk_sum_bf16_8", 128, 512},
		{"short rows", symmetricNormOf(4, 2000, 2048), "bulk_sum_bf16_4", 128, 512},
	} {
		l, err := choose(scattered(c.launch))
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got the error %q, want %q", c.name, err, c.want)
			}

			continue
		}

		if l.Kernel != c.want || l.Blocks != c.blocks || l.Threads != c.threads {
			t.Errorf("%s: got %s with %d blocks of %d threads, want %s with %d of %d", c.name, l.Kernel,
				l.Blocks, l.Threads, c.want, c.blocks, c.threads)
		}
	}
}

// TestNormsBeyond32BitsAreRefused checks numbers of rows that arguments of kernels cannot hold.
func TestNormsBeyond32BitsAreRefused(t *testing.T) {
	for _, rows := range []int64{1 << 31, 1 << 32} {
		want := fmt.Sprintf("for %d rows", rows)
		allReduced := symmetricNormOf(2, rows, driver.NormUnit)
		for _, l := range []Launch{
			allReduced, scattered(symmetricNormOf(2, rows, driver.NormUnit)),
		} {
			chosen, err := choose(l)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v of %d rows: got the kernel %q and error %v, want an error with %q",
					l.Operation, rows, chosen.Kernel, err, want)
			}
		}
	}
}

// TestScatteredNormsInPlaceArePulled checks that an output in this rank's part of the input does
// not matter, because peers do not read that part.
func TestScatteredNormsInPlaceArePulled(t *testing.T) {
	const rank, elementBytes = 1, 2
	l := scattered(symmetricNormOf(4, 257, 4096))
	l.Rank = rank
	l.Recv = l.Send + uintptr(rank*l.Count*elementBytes) // Count elements for each rank
	chosen, err := choose(l)
	if err != nil || chosen.Kernel != "norm_pull_bf16_4" {
		t.Errorf("in place: got the kernel %q and error %v, want norm_pull_bf16_4", chosen.Kernel, err)
	}
}

// TestChooseNormsInWindows checks the choice of a kernel for AllReduceRMSNorm with buffers in
// windows. On 2 ranks, large norms use pull kernels, which have a thread for each 8 elements of a
// row.
func TestChooseNormsInWindows(t *testing.T) {
	const bulkThreads = 512
	for _, c := range []struct {
		name            string
		ranks           int
		rows, hidden    int64  // hidden is the number of elements in a row
		want            string // name of the kernel
		blocks, threads int    // threads of a block
		change          func(*Launch)
	}{
		// name, ranks, rows, hidden, want, blocks, threads, change
		{"few rows", 2, 16, 8192, "norm_bf16_2", 16, (31 + 1) * warp, nil},
		{
			"largest number of rows for line kernels", 2, 896, 4096, "norm_bf16_2", 128,
			(18 + 1) * warp, nil, // warps for 18 chunks of 480 bytes, and one for headers
		},
		{"2 ranks", 2, 897, 4096, "norm_pull_bf16_2", 128, 4096 / 8, nil},
		{
			"2 ranks, fewer multiprocessors", 2, 1000, 8192, "norm_pull_bf16_2", 100, 8192 / 8,
			func(l *Launch) { l.Multiprocessors = 100 },
		},
		{
			"2 ranks in place", 2, 1000, 8192, "bulk_two_shot_bf16_2", 128, bulkThreads,
			func(l *Launch) { l.Recv = l.Send },
		},
		{
			"2 ranks, only quantized", 2, 1000, 8192, "norm_pull_q_bf16_2", 128, 8192 / 8,
			func(l *Launch) {
				l.Recv, l.Norm.Quant, l.Norm.OnlyQuantized = l.Send, driver.QuantPerRow, true
			},
		},
		{"3 ranks", 3, 1024, 8192, "bulk_two_shot_bf16_8", 128, bulkThreads, nil},
		{"4 ranks", 4, 8192, 7168, "bulk_two_shot_bf16_4", 128, bulkThreads, nil},
		// Pull kernels support rows of 4096 to 8192 elements.
		{"short rows", 2, 8192, 4088, "bulk_two_shot_bf16_2", 128, bulkThreads, nil},
		{"long rows", 2, 8192, 8200, "bulk_two_shot_bf16_2", 128, bulkThreads, nil},
	} {
		l := symmetricNormOf(c.ranks, c.rows, c.hidden)
		if c.change != nil {
			c.change(&l)
		}

		l, err := choose(l)
		if err != nil {
			t.Errorf("%s: got the error %v, want %s", c.name, err, c.want)
		} else if l.Kernel != c.want || l.Blocks != c.blocks || l.Threads != c.threads {
			t.Errorf("%s: got %s with %d blocks of %d threads; want %s with %d blocks of %d", c.name,
				l.Kernel, l.Blocks, l.Threads, c.want, c.blocks, c.threads)
		}
	}
}

// TestLargeNormsUseTheKernelOfTheAllReduce checks that a norm uses a bulk kernel, which accesses
// the buffers of peers, if and only if an all-reduce of the same size does. Unless the kernel of
// the norm is fused, it must then be the same.
func TestLargeNormsUseTheKernelOfTheAllReduce(t *testing.T) {
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for rows := int64(1); rows <= 8192; rows *= 2 {
			l := symmetricNormOf(ranks, rows, 8192)
			norm, err := choose(l)
			if err != nil {
				t.Fatalf("norm of %d rows on %d ranks: %v", rows, ranks, err)
			}

			l.Operation = driver.AllReduce
			sum, err := choose(l)
			if err != nil {
				t.Fatalf("all-reduce of %d rows on %d ranks: %v", rows, ranks, err)
			}

			if norm.Bulk != sum.Bulk {
				t.Errorf("%d rows on %d ranks: Bulk = %t for a norm, but %t for an all-reduce", rows, ranks,
					norm.Bulk, sum.Bulk)
			}

			if norm.Bulk && !norm.Fused && norm.Kernel != sum.Kernel {
				t.Errorf("%d rows on %d ranks: a norm uses the kernel %s, want %s, as an all-reduce", rows,
					ranks, norm.Kernel, sum.Kernel)
			}
		}
	}
}

// TestNormsFitIntoExchangeMemory checks that every fused norm outside windows fits into half of
// the exchange memory, a block of memory through which ranks send lines.
func TestNormsFitIntoExchangeMemory(t *testing.T) {
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		// Larger and larger numbers that are not only powers of two.
		for size := int64(driver.NormUnit); size <= driver.MaxHidden; size = size*3/2 + 1 {
			hidden := size / driver.NormUnit * driver.NormUnit
			for rows := int64(1); rows < 1<<20; rows = rows*3/2 + 1 {
				isKernelFound := checkNormFits(t, ranks, rows, hidden)
				if !isKernelFound {
					break // more rows have none, either
				}
			}
		}
	}
}

// checkNormFits checks the size of the lines for an AllReduceRMSNorm, and for a
// ReduceScatterRMSNorm with the same number of rows on each rank. It returns false if the
// AllReduceRMSNorm has no kernel.
func checkNormFits(t *testing.T, ranks int, rows, hidden int64) bool {
	t.Helper()
	const elementBytes = 2
	// lineBytesFor returns the size of the lines, if each rank sends sentBytes of each row.
	lineBytesFor := func(sentBytes int64) int64 {
		return rows * int64(ranks) * countChunks(sentBytes, wideLines) * wideLines * lineBytes
	}
	l, err := choose(normOf(ranks, rows, hidden))
	if err != nil {
		return false
	}

	used := lineBytesFor(elementBytes * hidden)
	if strings.Contains(l.Kernel, "two_shot") { // sends a rank's part of a row, and then its sum
		packs := (hidden/driver.NormUnit + int64(ranks) - 1) / int64(ranks) // of a part, rounded up
		used = 2 * lineBytesFor(packs*packBytes)
	}

	if l.Fused && used > halfBytes {
		t.Errorf("%d rows of %d on %d ranks need %d bytes of lines, want at most %d", rows, hidden,
			ranks, used, halfBytes)
	}

	s, err := choose(scattered(normOf(ranks, rows, hidden)))
	used = lineBytesFor(elementBytes * hidden)
	if err == nil && s.Fused && used > halfBytes {
		t.Errorf("%d scattered rows of %d on %d ranks need %d bytes of lines, want at most %d",
			rows, hidden, ranks, used, halfBytes)
	}

	return true
}

// TestGridsOfRows checks that a block has enough threads to move and normalize a row: a warp for
// each chunk of 480 bytes that it sends, at most 31, and one warp for headers. There is a block for
// each row, but there are at most 128.
func TestGridsOfRows(t *testing.T) {
	for _, c := range []struct {
		ranks           int
		rows, hidden    int64 // hidden is the number of elements in a row
		blocks, threads int   // threads of a block
	}{
		// ranks, rows, hidden, blocks, threads
		{2, 0, 1024, 1, (5 + 1) * warp},
		{2, 3, 1024, 3, (5 + 1) * warp},
		{4, 1, 4096, 1, (18 + 1) * warp},
		{2, 16, 8192, 16, (31 + 1) * warp},
		{4, 100, 4096, 100, (4*5 + 1) * warp}, // a two-shot kernel: a quarter of a row to each rank
		{2, 300, 4096, 128, (18 + 1) * warp},
		{8, 1, driver.NormUnit, 1, (1 + 1) * warp},
	} {
		l, err := choose(normOf(c.ranks, c.rows, c.hidden))
		if err != nil {
			t.Errorf("%d rows of %d on %d ranks: %v", c.rows, c.hidden, c.ranks, err)
		} else if l.Blocks != c.blocks || l.Threads != c.threads {
			t.Errorf("%d rows of %d on %d ranks: got %d blocks of %d threads; want %d of %d", c.rows,
				c.hidden, c.ranks, l.Blocks, l.Threads, c.blocks, c.threads)
		}
	}
}

// TestLocalSteps checks the local kernel, the second kernel of a norm that is not fused. It may
// start before the sums are complete (CanOverlap) if its blocks use at most a quarter of the GPU.
func TestLocalSteps(t *testing.T) {
	const maxOverlappingRows = multiprocessorsOfH200 / 4 // a block of maxRowThreads for each row
	l := normOf(4, 100, 8192)
	l.Norm.Quant = driver.QuantPerRow
	for _, test := range []struct {
		rows           int64
		wantCanOverlap bool
	}{
		{maxOverlappingRows, true},
		{maxOverlappingRows + 1, false},
	} {
		l.Norm.Rows = test.rows
		s := newLocalStep(&l, &Transport{CanOverlap: true})
		if s.Kernel != "norm_local_q_bf16" || !s.Local {
			t.Errorf("%d rows: got kernel %s with Local = %t, want norm_local_q_bf16 with true",
				test.rows, s.Kernel, s.Local)
		}

		if s.Blocks != int(test.rows) || s.Threads != maxRowThreads {
			t.Errorf("%d rows: got %d blocks of %d threads, want %d of %d", test.rows, s.Blocks,
				s.Threads, test.rows, maxRowThreads)
		}

		if s.CanOverlap != test.wantCanOverlap {
			t.Errorf("%d rows: CanOverlap = %t, want %t", test.rows, s.CanOverlap, test.wantCanOverlap)
		}
	}
}

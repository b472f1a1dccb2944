package kernels

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// Dispatch and Combine route rows between ranks. For example, 33 experts are divided among 2 ranks:
// rank 0 owns the first 17, and rank 1 owns the other 16. Dispatch sends the row of each token to
// the ranks that own an expert of the token. Combine sends the new rows of the experts back and
// adds them up. Between them, Permute sorts the rows of a rank by expert. Unpermute undoes this.
//
// A line kernel sends the rows of a small call in lines through exchange memory, which each rank
// has. A bulk kernel accesses the buffers of other ranks directly, which requires symmetric memory.

const multiprocessorsOfH200 = 132

// routeOf returns a Dispatch or Combine of rank 1. Most arguments have a different value, so that
// tests notice if two of them are swapped.
func routeOf(o driver.Operation, ranks int, maxTokens int64) Launch {
	return Launch{
		Call: &driver.Call{
			Operation: o, DataType: driver.BFloat16, Send: 108, Recv: 109, Digest: 107,
			SendWindow: fakeWindow(300), RecvWindow: fakeWindow(300),
			Route: &driver.Route{
				Tokens: 1, MaxTokens: maxTokens, Hidden: 64, Scales: 5, TopK: 3, Experts: 33,
				IDs: 501, Weights: 502, RowScales: 503,
			},
		},
		Rank: 1, Ranks: ranks, Symmetric: true, Multiprocessors: multiprocessorsOfH200,
	}
}

// permutation is the permutation of a Dispatch's rows on rank 1 of 2 ranks.
var permutation = driver.Permutation{
	Route:    driver.Route{MaxTokens: 16, Hidden: 64, Scales: 5, TopK: 3, Experts: 33},
	DataType: driver.Uint8, Rank: 1, Ranks: 2, Align: 128,
	Dispatched: 601, Permuted: 602, Computed: 603, Returned: 604,
}

// onlyStep returns the only kernel launch of a Dispatch or Combine.
func onlyStep(work Work, t *Transport) Step { return work.Steps(t)[0] }

// routeNames lists all kernels that Dispatch, Combine, Permute and Unpermute use.
func routeNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, isUnpermute := range []bool{false, true} {
		step, err := Permute(&permutation, isUnpermute, multiprocessorsOfH200)
		if err != nil {
			t.Fatal(err)
		}

		names[step.Kernel] = true
	}

	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for _, o := range []driver.Operation{driver.Dispatch, driver.Combine} {
			const tokensForLines = 10
			const tokensForBulk = maxLineTokens + 1
			for _, maxTokens := range []int64{tokensForLines, tokensForBulk} {
				work, err := Choose(routeOf(o, ranks, maxTokens))
				if err != nil {
					t.Fatal(err)
				}

				names[onlyStep(work, &Transport{}).Kernel] = true
			}
		}
	}

	return names
}

// TestRouteParamsMatchSources checks that each argument of a kernel is at the offset at which the
// CUDA sources declare the field of this name.
func TestRouteParamsMatchSources(t *testing.T) {
	const ranks = 2
	const rowBytes = 2 * 64 // a row has 64 elements of bfloat16
	l := routeOf(driver.Dispatch, ranks, 16)
	work, err := Choose(l)
	if err != nil {
		t.Fatal(err)
	}

	transport := Transport{Timeout: 113 * time.Nanosecond, Report: 114}
	step := onlyStep(work, &transport)
	const digest = 1 << 60
	step.SetDigest(digest) // replaces the digest of the call
	// The numbers of experts that rank 0 and rank 1 own.
	const owned0 = 17
	const owned1 = 16
	layout := l.Route.Layout(ranks, rowBytes)
	want := map[string]uint64{
		"rank": 1, "ranks": ranks, "tokens": 1, "topK": 3, "digest": digest, "timeout": 113,
		"report": 114, "experts": 33, "maxTokens": 16, "rowBytes": rowBytes, "scales": 5,
		"ids": 501, "weights": 502, "rowScales": 503, "own": 108,

		// The first "more" ranks own one expert more than the others. Their experts end at "split".
		"split": owned0, "more": 1, "firstExpert": owned0, "ownExperts": owned1,
		// Factors that replace divisions by the numbers of experts: 2^20 divided by each, rounded up.
		"high": (1<<20 + owned0 - 1) / owned0,
		"low":  1 << 20 / owned1, // without a remainder
		// There are two chunks: one of the row, and one of scales, ids and weights. "inverse" is 2^31
		// divided by their number.
		"chunks": 2, "inverse": 1 << 31 / 2,

		"scalesAt": uint64(layout.Scales), "weightsAt": uint64(layout.Weights),
		"idsAt": uint64(layout.IDs), "countsAt": uint64(layout.Counts),
	}
	checkLayout(t, "Route", packed(step.Params), want)
}

// TestPermuteParamsMatchSources is TestRouteParamsMatchSources for the kernel of Permute.
func TestPermuteParamsMatchSources(t *testing.T) {
	const isUnpermute = false
	step, err := Permute(&permutation, isUnpermute, multiprocessorsOfH200)
	if err != nil {
		t.Fatal(err)
	}

	const (
		ranks         = 2
		rowBytes      = 64     // elements of one byte
		computedBytes = 2 * 64 // experts compute rows of bfloat16
	)
	from := permutation.Route.Layout(ranks, rowBytes)
	to := permutation.Layout()
	checkLayout(t, "Permute", packed(step.Params), map[string]uint64{
		"ranks": ranks, "maxTokens": 16, "topK": 3, "rowBytes": rowBytes, "scales": 5, "align": 128,
		"computedBytes": computedBytes, "firstExpert": 17, "ownExperts": 16,
		"experts":  17, // the most that a rank owns: rank 0
		"capacity": uint64(to.Capacity), "dispatched": 601, "permuted": 602, "computed": 603,
		"returned": 604, "scalesAt": uint64(from.Scales), "weightsAt": uint64(from.Weights),
		"idsAt": uint64(from.IDs), "countsAt": uint64(from.Counts), "toScales": uint64(to.Scales),
		"toWeights": uint64(to.Weights), "toExperts": uint64(to.Experts),
		"toPlaces": uint64(to.Places), "toFirsts": uint64(to.Firsts),
		"toCounts": uint64(to.Counts), "toReceived": uint64(to.Received),
	})
}

// TestPermutationsOfManyRanksHaveNoKernel checks that Permute refuses more ranks than its kernel
// supports.
func TestPermutationsOfManyRanksHaveNoKernel(t *testing.T) {
	const isUnpermute = false
	many := permutation
	many.Ranks = MaxRanks + 1
	_, err := Permute(&many, isUnpermute, multiprocessorsOfH200)
	if !errors.Is(err, errNoKernel) {
		t.Errorf("Permute for %d ranks = %v, want errNoKernel", many.Ranks, err)
	}
}

// TestRoutesUseLineKernels checks that only small calls use line kernels, and that their lines fit
// into exchange memory.
func TestRoutesUseLineKernels(t *testing.T) {
	for _, test := range []struct {
		name           string
		tokens, hidden int64
		ranks          int
		isSymmetric    bool
		wantLines      bool
	}{
		{
			name: "small", tokens: 128, hidden: 7168, ranks: 4,
			isSymmetric: true, wantLines: true,
		},
		{
			name: "small, without symmetric memory", tokens: 128, hidden: 7168, ranks: 8,
			isSymmetric: false, wantLines: true,
		},
		{
			name: "large", tokens: 512, hidden: 7168, ranks: 4,
			isSymmetric: true, wantLines: false,
		},
		{
			name: "most tokens, in short rows", tokens: maxLineTokens, hidden: 64, ranks: 8,
			isSymmetric: true, wantLines: true,
		},
		{
			name: "too many tokens", tokens: maxLineTokens + 1, hidden: 64, ranks: 8,
			isSymmetric: true, wantLines: false,
		},
	} {
		l := routeOf(driver.Combine, test.ranks, test.tokens)
		l.Route.Hidden = test.hidden
		l.Symmetric = test.isSymmetric
		work, err := Choose(l)
		if err != nil {
			t.Fatal(err)
		}

		kernel := onlyStep(work, &Transport{}).Kernel
		usesLines := strings.HasPrefix(kernel, "route_line")
		if usesLines != test.wantLines {
			t.Errorf("%s: the call uses the kernel %s, want a line kernel: %t", test.name, kernel,
				test.wantLines)
		}
	}

	checkRoutesFitIntoExchangeMemory(t)
}

// checkRoutesFitIntoExchangeMemory checks that the lines of each call with a line kernel fit into
// half of the exchange memory. The calls are not symmetric, so they have no bulk kernel.
func checkRoutesFitIntoExchangeMemory(t *testing.T) {
	t.Helper()
	const ranks = 8
	for hidden := int64(8); hidden <= 1<<16; hidden *= 2 {
		for tokens := int64(1); tokens <= maxLineTokens; tokens++ {
			l := routeOf(driver.Dispatch, ranks, tokens)
			l.Route.Hidden = hidden
			l.Symmetric = false
			work, err := Choose(l)
			if err != nil { // more tokens do not fit, either
				break
			}

			chunks := ranks * tokens * work.(*route).chunksPerToken()
			headerBytes := int64(MaxRanks * lineBytes)
			bytes := headerBytes + chunks*wideLines*lineBytes // a chunk has wideLines lines
			if bytes > halfBytes {
				t.Fatalf("%d rows of %d elements: %d bytes of lines, want at most %d", tokens, hidden, bytes,
					halfBytes)
			}
		}
	}
}

// TestRoutesFitOnTheGPU checks that all blocks of a kernel can run at the same time, on GPUs with
// few and with many multiprocessors. Blocks wait for each other, and could otherwise hang.
func TestRoutesFitOnTheGPU(t *testing.T) {
	for _, multiprocessors := range []int{1, 20, 132, 300} {
		for _, maxTokens := range []int64{1, 7, 100, 1 << 15} {
			l := routeOf(driver.Combine, 3, maxTokens)
			l.Multiprocessors = multiprocessors
			l.Route.Hidden = 4096
			work, err := Choose(l)
			if err != nil {
				t.Fatal(err)
			}

			limit := min(multiprocessors, maxBlocks)
			if work.(*route).launch.Bulk {
				limit = min(multiprocessors, maxBulkBlocks)
			}

			blocks := onlyStep(work, &Transport{}).Blocks
			if blocks < 1 || blocks > limit {
				t.Errorf("%d tokens on %d multiprocessors take %d blocks, want 1 to %d", maxTokens,
					multiprocessors, blocks, limit)
			}
		}
	}
}

// TestRoutesWithoutKernel checks that calls without a suitable kernel are refused. One is too large
// for a line kernel, and has no symmetric memory for a bulk kernel. The other has only one rank.
func TestRoutesWithoutKernel(t *testing.T) {
	large := routeOf(driver.Dispatch, 2, maxLineTokens+1)
	large.Symmetric = false
	alone := routeOf(driver.Dispatch, 1, 10)
	for name, l := range map[string]Launch{"outside windows": large, "on one rank": alone} {
		if _, err := Choose(l); !errors.Is(err, errNoKernel) {
			t.Errorf("Choose for a Dispatch %s = %v, want errNoKernel", name, err)
		}
	}
}

package kernels

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// routeOf returns a Dispatch or Combine of rank 1. These calls route rows (one for each token) to
// the ranks of the token's experts, and back. Most arguments differ, so that tests notice swapped
// ones.
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

const multiprocessorsOfH200 = 132

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
			// One call with a line kernel, and one with a bulk kernel.
			for _, maxTokens := range []int64{10, maxLineTokens + 1} {
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

// onlyStep returns the only kernel launch of a Dispatch or Combine.
func onlyStep(work Work, t *Transport) Step { return work.Steps(t)[0] }

// TestRouteParamsMatchSources checks that each argument of a kernel is at the offset at which the
// CUDA sources declare the field of this name.
func TestRouteParamsMatchSources(t *testing.T) {
	l := routeOf(driver.Dispatch, 2, 16)
	work, err := Choose(l)
	if err != nil {
		t.Fatal(err)
	}

	const ranks, rowBytes = 2, 2 * 64 // a row has 64 elements of bfloat16
	layout := l.Route.Layout(ranks, rowBytes)
	transport := Transport{Timeout: 113 * time.Nanosecond, Report: 114}
	step := onlyStep(work, &transport)
	const digest = 1 << 60
	step.SetDigest(digest) // replaces the digest of the call
	// Of 33 experts, rank 0 owns the first 17 and rank 1 the other 16.
	const owned0, owned1 = 17, 16
	want := map[string]uint64{
		"rank": 1, "ranks": ranks, "tokens": 1, "topK": 3, "digest": digest, "timeout": 113,
		"report": 114, "experts": 33, "maxTokens": 16, "rowBytes": rowBytes, "scales": 5,
		"split": owned0, "more": 1, // 1 rank owns one expert more, and its experts end at split
		"high": (1<<20 + owned0 - 1) / owned0, // 2^20 / 17, rounded up
		"low":  1 << 20 / owned1, "firstExpert": owned0, "ownExperts": owned1,
		"chunks": 2, "inverse": 1 << 31 / 2, // a chunk of the row, and one of scales, ids and weights
		"ids": 501, "weights": 502, "rowScales": 503, "own": 108,
		"scalesAt": uint64(layout.Scales), "weightsAt": uint64(layout.Weights),
		"idsAt": uint64(layout.IDs), "countsAt": uint64(layout.Counts),
	}
	checkLayout(t, "Route", packed(step.Params), want)
}

// permutation sorts the rows that a Dispatch has received by expert. Rank 1 of 2 ranks owns 16 of
// 33 experts.
var permutation = driver.Permutation{
	Route:    driver.Route{MaxTokens: 16, Hidden: 64, Scales: 5, TopK: 3, Experts: 33},
	DataType: driver.Uint8, Rank: 1, Ranks: 2, Align: 128,
	Dispatched: 601, Permuted: 602, Computed: 603, Returned: 604,
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
	from, to := permutation.Route.Layout(ranks, rowBytes), permutation.Layout()
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

// TestRoutesUseLineKernels checks which calls use line kernels. These send rows as lines through
// exchange memory, a block of memory of each rank. Bulk kernels access the buffers of other ranks
// directly, which requires symmetric memory.
func TestRoutesUseLineKernels(t *testing.T) {
	for _, test := range []struct {
		name           string
		tokens, hidden int64
		ranks          int
		isSymmetric    bool
		wantLines      bool
	}{
		// name, tokens, hidden, ranks, isSymmetric, wantLines
		{"small", 128, 7168, 4, true, true},
		{"small, without symmetric memory", 128, 7168, 8, false, true},
		{"large", 512, 7168, 4, true, false},
		{"most tokens, in short rows", maxLineTokens, 64, 8, true, true},
		{"too many tokens", maxLineTokens + 1, 64, 8, true, false},
	} {
		l := routeOf(driver.Combine, test.ranks, test.tokens)
		l.Route.Hidden, l.Symmetric = test.hidden, test.isSymmetric
		work, err := Choose(l)
		if err != nil {
			t.Fatal(err)
		}

		kernel := onlyStep(work, &Transport{}).Kernel
		if usesLines := strings.HasPrefix(kernel, "route_line"); usesLines != test.wantLines {
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
			l.Route.Hidden, l.Symmetric = hidden, false
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
// few and with many multiprocessors. Blocks that wait for each other could otherwise hang.
func TestRoutesFitOnTheGPU(t *testing.T) {
	for _, multiprocessors := range []int{1, 20, 132, 300} {
		for _, maxTokens := range []int64{1, 7, 100, 1 << 15} {
			l := routeOf(driver.Combine, 3, maxTokens)
			l.Multiprocessors, l.Route.Hidden = multiprocessors, 4096
			work, err := Choose(l)
			if err != nil {
				t.Fatal(err)
			}

			limit := min(multiprocessors, maxBlocks)
			if work.(*route).l.Bulk {
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

// TestRoutesWithoutKernel checks that calls without a suitable kernel are refused.
func TestRoutesWithoutKernel(t *testing.T) {
	// Too large for a line kernel, and bulk kernels need symmetric memory.
	large := routeOf(driver.Dispatch, 2, maxLineTokens+1)
	large.Symmetric = false
	alone := routeOf(driver.Dispatch, 1, 10)
	for name, l := range map[string]Launch{"outside windows": large, "on one rank": alone} {
		if _, err := Choose(l); !errors.Is(err, errNoKernel) {
			t.Errorf("Choose for a Dispatch %s = %v, want errNoKernel", name, err)
		}
	}
}

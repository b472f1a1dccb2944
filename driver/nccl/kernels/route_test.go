package kernels

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// routeOf returns a Dispatch or Combine. Its arguments differ, so that tests notice swapped ones.
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
		Rank: 1, Ranks: ranks, Symmetric: true, Multiprocessors: 132,
	}
}

// routeNames lists all kernels that Dispatch, Combine, Permute and Unpermute use.
func routeNames(t *testing.T) map[string]bool {
	names := map[string]bool{}
	for _, returns := range []bool{false, true} { // Permute and Unpermute
		step, err := Permute(&permutation, returns, 132)
		if err != nil {
			t.Fatal(err)
		}
		names[step.Kernel] = true
	}
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for _, o := range []driver.Operation{driver.Dispatch, driver.Combine} {
			for _, maxTokens := range []int64{10, maxLineTokens + 1} {
				work, err := Choose(routeOf(o, ranks, maxTokens))
				if err != nil {
					t.Fatal(err)
				}
				names[work.Steps(&Transport{})[0].Kernel] = true
			}
		}
	}
	return names
}

func TestRouteParamsMatchSources(t *testing.T) {
	l := routeOf(driver.Dispatch, 2, 16)
	work, err := Choose(l)
	if err != nil {
		t.Fatal(err)
	}
	layout := l.Route.Layout(2, 128)
	transport := Transport{Timeout: 113 * time.Nanosecond, Report: 114}
	step := work.Steps(&transport)[0]
	step.SetDigest(1 << 60)
	checkLayout(t, "Route", packed(step.Params), map[string]uint64{
		"rank": 1, "ranks": 2, "tokens": 1, "topK": 3, "digest": 1 << 60, "timeout": 113, "report": 114,
		"experts": 33, "maxTokens": 16, "rowBytes": 128, "scales": 5, "split": 17, "more": 1,
		"high": 61681, "low": 65536, "firstExpert": 17, "ownExperts": 16, "chunks": 2,
		"inverse": 1 << 30, "ids": 501, "weights": 502, "rowScales": 503, "own": 108,
		"scalesAt":  uint64(layout.Scales),
		"weightsAt": uint64(layout.Weights), "idsAt": uint64(layout.IDs),
		"countsAt": uint64(layout.Counts),
	})
}

var permutation = driver.Permutation{
	Route:    driver.Route{MaxTokens: 16, Hidden: 64, Scales: 5, TopK: 3, Experts: 33},
	DataType: driver.Uint8, Rank: 1, Ranks: 2, Align: 128,
	Dispatched: 601, Permuted: 602, Computed: 603, Returned: 604,
}

func TestPermuteParamsMatchSources(t *testing.T) {
	step, err := Permute(&permutation, false, 132)
	if err != nil {
		t.Fatal(err)
	}
	from, to := permutation.Route.Layout(2, 64), permutation.Layout()
	checkLayout(t, "Permute", packed(step.Params), map[string]uint64{
		"ranks": 2, "maxTokens": 16, "topK": 3, "rowBytes": 64, "scales": 5, "align": 128,
		"computedBytes": 128, "firstExpert": 17, "ownExperts": 16, "experts": 17,
		"capacity": uint64(to.Capacity), "dispatched": 601, "permuted": 602, "computed": 603,
		"returned": 604, "scalesAt": uint64(from.Scales), "weightsAt": uint64(from.Weights),
		"idsAt": uint64(from.IDs), "countsAt": uint64(from.Counts), "toScales": uint64(to.Scales),
		"toWeights": uint64(to.Weights), "toExperts": uint64(to.Experts),
		"toPlaces": uint64(to.Places), "toFirsts": uint64(to.Firsts),
		"toCounts": uint64(to.Counts), "toReceived": uint64(to.Received),
	})
}

func TestPermutationsOfManyRanksHaveNoKernel(t *testing.T) {
	many := permutation
	many.Ranks = MaxRanks + 1
	if _, err := Permute(&many, false, 132); !errors.Is(err, errNoKernel) {
		t.Errorf("Permute for %d ranks = %v, want errNoKernel", many.Ranks, err)
	}
}

// TestRoutesUseLineKernels checks which calls use kernels that send rows as lines through exchange
// memory, and that the lines of all such calls fit into half of that memory.
func TestRoutesUseLineKernels(t *testing.T) {
	for _, row := range []struct {
		tokens, hidden int64
		ranks          int
		isSymmetric    bool
		want           bool
	}{
		{128, 7168, 4, true, true},
		{128, 7168, 8, false, true},
		{512, 7168, 4, true, false},
		{maxLineTokens, 64, 8, true, true},
		{maxLineTokens + 1, 64, 8, true, false},
	} {
		l := routeOf(driver.Combine, row.ranks, row.tokens)
		l.Route.Hidden, l.Symmetric = row.hidden, row.isSymmetric
		work, err := Choose(l)
		if err != nil {
			t.Fatal(err)
		}
		kernel := work.Steps(&Transport{})[0].Kernel
		if got := strings.HasPrefix(kernel, "route_line"); got != row.want {
			t.Errorf("%+v: uses a line kernel: %v, want %v", row, got, row.want)
		}
	}
	for hidden := int64(8); hidden <= 1<<16; hidden *= 2 {
		for tokens := int64(1); tokens <= maxLineTokens; tokens++ {
			l := routeOf(driver.Dispatch, 8, tokens)
			l.Route.Hidden, l.Symmetric = hidden, false
			work, err := Choose(l)
			if err != nil { // more tokens do not fit, either
				break
			}
			chunks := 8 * tokens * work.(*route).chunksPerPlace()
			bytes := MaxRanks*lineBytes + chunks*wideLines*lineBytes
			if bytes > halfBytes {
				t.Fatalf("%d rows of %d elements: %d bytes of lines, want at most %d", tokens, hidden, bytes,
					halfBytes)
			}
		}
	}
}

func TestRoutesFitOnTheGPU(t *testing.T) {
	for _, multiprocessors := range []int{1, 20, 132, 300} {
		for _, maxTokens := range []int64{1, 7, 100, 1 << 15} {
			l := routeOf(driver.Combine, 3, maxTokens)
			l.Multiprocessors, l.Route.Hidden = multiprocessors, 4096
			work, err := Choose(l)
			if err != nil {
				t.Fatal(err)
			}
			step := work.Steps(&Transport{})[0]
			limit := min(multiprocessors, maxBlocks)
			if work.(*route).l.Bulk {
				limit = min(multiprocessors, maxBulkBlocks)
			}
			if step.Blocks < 1 || step.Blocks > limit {
				t.Errorf("at most %d tokens on %d multiprocessors take %d blocks, want 1 to %d", maxTokens,
					multiprocessors, step.Blocks, limit)
			}
		}
	}
}

func TestRoutesWithoutKernel(t *testing.T) {
	large, alone := routeOf(driver.Dispatch, 2, maxLineTokens+1), routeOf(driver.Dispatch, 1, 10)
	large.Symmetric = false
	for name, l := range map[string]Launch{"outside windows": large, "on one rank": alone} {
		if _, err := Choose(l); !errors.Is(err, errNoKernel) {
			t.Errorf("Choose for a Dispatch %s = %v, want errNoKernel", name, err)
		}
	}
}

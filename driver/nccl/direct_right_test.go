package nccl

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/formula"
	"symmem/driver/nccl/kernels"
	"symmem/internal/reduce"
)

// runsAllCases reports whether tests of the direct path run all cases, which takes minutes on
// GPUs, instead of a random sample.
func runsAllCases() bool { return os.Getenv("SYMMEM_TEST_FULL") == "1" }

// newRandom returns a random number generator, and logs the seed if the test fails.
func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("random seed: %#x", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 1))
}

// memberLists returns the world ranks of groups of two, three and four ranks, as far as the
// machine has GPUs. With four GPUs, the group of three ranks skips one GPU.
func memberLists(t *testing.T) [][]int {
	t.Helper()
	switch n := maxRanks(t); {
	case n < 3:
		return [][]int{{0, 1}}
	case n == 3:
		return [][]int{{0, 1}, {0, 1, 2}}
	default:
		return [][]int{{0, 1}, {0, 2, 3}, {0, 1, 2, 3}}
	}
}

// TestDirectIsRight compares the outputs of collectives on the direct path, and the memory around
// the outputs, with results computed on the host. Sums must have the same bits as float32 sums in
// rank order. On the software GPU, it tests one random group and half of the types.
func TestDirectIsRight(t *testing.T) {
	size := int64(2 << 20)
	if runsAllCases() {
		size = maxLargeBytes + 1<<20
	}
	random := newRandom(t)
	p := newTestbed(t, ranksUpTo(t, 4), size, random)
	groups := memberLists(t)
	dataTypes := reduce.DataTypes()
	if !runsAllCases() && usesSoftGPU(t) {
		i := random.IntN(len(groups))
		groups = groups[i : i+1]
		random.Shuffle(len(dataTypes), func(i, j int) {
			dataTypes[i], dataTypes[j] = dataTypes[j], dataTypes[i]
		})
		dataTypes = dataTypes[:len(dataTypes)/2]
	}
	for _, members := range groups {
		p.regroupAndRegister(members...)
		for _, dataType := range dataTypes {
			begin, testedBefore := time.Now(), p.tested
			p.drawInputs(dataType)
			p.checkCopies(dataType)
			p.checkReductions(dataType)
			if runsAllCases() {
				fmt.Printf("ranks %v, %v: %d calls are correct, after %v\n", members, dataType,
					p.tested-testedBefore, time.Since(begin).Round(time.Millisecond))
			}
		}
	}
	t.Logf("tested %d calls", p.tested)
}

func (p *testbed) checkCopies(t driver.DataType) {
	p.t.Helper()
	for _, o := range []driver.Operation{driver.AllGather, driver.Broadcast, driver.AllToAll} {
		p.checkOperation(trial{layout: layout{dataType: t}, operation: o})
	}
}

func (p *testbed) checkReductions(t driver.DataType) {
	p.t.Helper()
	for _, op := range driver.ReductionsOf(t) {
		if !kernels.CanReduce(t, op) {
			continue
		}
		p.reduced = formula.Reduce(driver.RankOrder, op, t, p.inputs)
		if t.Float() && t != driver.Float64 && op != driver.Prod { // checkNear has a bound for these
			if err := checkNear(t, op, p.inputs, p.reduced); err != nil {
				p.t.Fatal(err)
			}
		}
		for _, o := range []driver.Operation{driver.AllReduce, driver.ReduceScatter, driver.Reduce} {
			p.checkOperation(trial{layout: layout{dataType: t}, operation: o, op: op})
		}
	}
}

// checkOperation tests an operation in place and out of place, inside and outside windows.
func (p *testbed) checkOperation(c trial) {
	p.t.Helper()
	for _, c.inPlace = range []bool{false, true} {
		for _, c.noWindow = range []bool{false, true} {
			p.checkSmallCounts(c)
			p.checkLargeCounts(c)
		}
	}
}

func (p *testbed) checkSmallCounts(c trial) {
	p.t.Helper()
	const compareWhole = true
	b := batch{layout: c.layout}
	for _, c.count = range p.smallCounts() {
		c.root = p.random.IntN(len(p.ranks))
		isFull := p.add(&b, c)
		if isFull {
			p.run(&b, compareWhole)
			b = batch{layout: c.layout}
			p.add(&b, c)
		}
	}
	p.run(&b, compareWhole)
}

// maxSmallCount is the largest count that checkSmallCounts tests.
const maxSmallCount = 4097

// smallCounts returns all counts up to maxSmallCount, or two random ones unless all cases run.
func (p *testbed) smallCounts() []int64 {
	var counts []int64
	if runsAllCases() {
		for count := range int64(maxSmallCount + 1) {
			counts = append(counts, count)
		}
		return counts
	}
	return []int64{p.random.Int64N(16), p.random.Int64N(maxSmallCount + 1)}
}

// maxLargeBytes is the size of the largest buffers that checkLargeCounts tests.
const maxLargeBytes = 256 << 20

// checkLargeCounts tests calls whose larger buffer has 2^n bytes, and calls with a count that is
// greater or smaller by 1. Unless all cases run, it tests one in 250 of them.
func (p *testbed) checkLargeCounts(c trial) {
	p.t.Helper()
	ranks := len(p.ranks)
	c.count = 1
	send, recv := c.spans(ranks)
	bytesPerCount := max(send, recv) * int64(c.dataType.Size())
	for bytes := int64(8 << 10); bytes <= maxLargeBytes; bytes *= 2 {
		count := bytes / bytesPerCount
		for _, c.count = range []int64{count - 1, count, count + 1} {
			if !runsAllCases() && p.random.IntN(250) != 0 {
				continue
			}
			b := batch{layout: c.layout}
			c.root = p.random.IntN(ranks)
			p.add(&b, c)
			// To save time, compare the whole output only for the largest sums of one type.
			compareWhole := bytes == maxLargeBytes && c.dataType == driver.BFloat16 &&
				c.op == driver.Sum
			p.run(&b, compareWhole)
		}
	}
}

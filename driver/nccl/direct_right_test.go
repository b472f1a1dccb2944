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

// runsAllCases reports whether tests of the direct path run all cases, which takes minutes, or a
// random sample.
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
	const sequence = 1 // arbitrary
	return rand.New(rand.NewPCG(seed, sequence))
}

// memberLists returns the ranks of groups with two to four members, as the number of GPUs permits.
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

// TestDirectIsRight compares outputs, and the memory around them, with results of the host. Sums
// must equal float32 sums in rank order bit by bit.
func TestDirectIsRight(t *testing.T) {
	bufferBytes := int64(2 << 20) // larger calls are skipped
	if runsAllCases() {
		const spaceAroundOutputs = 1 << 20
		bufferBytes = maxLargeBytes + spaceAroundOutputs
	}

	random := newRandom(t)
	p := newTestbed(t, ranksUpTo(t, 4), bufferBytes, random)
	groups := memberLists(t)
	dataTypes := reduce.DataTypes()
	if !runsAllCases() && usesSoftGPU(t) { // which is slow
		group := groups[random.IntN(len(groups))]
		groups = [][]int{group}
		random.Shuffle(len(dataTypes), func(i, j int) {
			dataTypes[i], dataTypes[j] = dataTypes[j], dataTypes[i]
		})
		dataTypes = dataTypes[:len(dataTypes)/2]
	}

	for _, members := range groups {
		p.regroupAndRegister(members...)
		for _, dataType := range dataTypes {
			begin := time.Now()
			testedBefore := p.tested
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

// checkCopies tests the operations that only move elements.
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
		hasErrorBound := t.Float() && t != driver.Float64 && op != driver.Prod // see checkNear
		if hasErrorBound {
			if err := checkNear(t, op, p.inputs, p.reduced); err != nil {
				p.t.Fatal(err)
			}
		}

		for _, o := range []driver.Operation{driver.AllReduce, driver.ReduceScatter, driver.Reduce} {
			p.checkOperation(trial{layout: layout{dataType: t}, operation: o, op: op})
		}
	}
}

func (p *testbed) checkOperation(c trial) {
	p.t.Helper()
	for _, inPlace := range []bool{false, true} {
		for _, noWindow := range []bool{false, true} {
			c.inPlace = inPlace
			c.noWindow = noWindow
			p.checkSmallCounts(c)
			p.checkLargeCounts(c)
		}
	}
}

// checkSmallCounts runs a batch whenever the buffers are full.
func (p *testbed) checkSmallCounts(c trial) {
	p.t.Helper()
	const compareWhole = true
	b := batch{layout: c.layout}
	for _, count := range p.smallCounts() {
		c.count = count
		c.root = p.random.IntN(len(p.ranks))
		isFull := p.add(&b, c)
		if isFull {
			p.run(&b, compareWhole)
			b = batch{layout: c.layout}
			p.add(&b, c) // the call that did not fit
		}
	}

	p.run(&b, compareWhole)
}

const maxSmallCount = 4097

// smallCounts returns all counts up to maxSmallCount, or a sample of two.
func (p *testbed) smallCounts() []int64 {
	if !runsAllCases() {
		return []int64{p.random.Int64N(16), p.random.Int64N(maxSmallCount + 1)}
	}

	var counts []int64
	for count := range int64(maxSmallCount + 1) {
		counts = append(counts, count)
	}

	return counts
}

const maxLargeBytes = 256 << 20

// checkLargeCounts tests calls whose larger buffer has about 2^n bytes, or one in 250 of them.
func (p *testbed) checkLargeCounts(c trial) {
	p.t.Helper()
	ranks := len(p.ranks)
	c.count = 1
	send, recv := c.spans(ranks)
	bytesPerCount := max(send, recv) * int64(c.dataType.Size()) // in the larger buffer
	for bytes := int64(8 << 10); bytes <= maxLargeBytes; bytes *= 2 {
		roundCount := bytes / bytesPerCount
		for _, count := range []int64{roundCount - 1, roundCount, roundCount + 1} {
			if !runsAllCases() && p.random.IntN(250) != 0 {
				continue
			}

			b := batch{layout: c.layout}
			c.count = count
			c.root = p.random.IntN(ranks)
			p.add(&b, c) // leaves b empty if the buffers are too small
			// Comparing a whole output is slow.
			isLargest := bytes == maxLargeBytes
			compareWhole := isLargest && c.dataType == driver.BFloat16 && c.op == driver.Sum
			p.run(&b, compareWhole)
		}
	}
}

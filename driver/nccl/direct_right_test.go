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

// runsAllCases reports whether tests of the direct path run all cases, which takes minutes, instead
// of a random sample.
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
	const secondSeed = 1 // arbitrary
	return rand.New(rand.NewPCG(seed, secondSeed))
}

// memberLists returns the members of groups with two, three and four ranks, if there are as many
// GPUs.
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
// are bitwise equal to float32 sums in rank order.
func TestDirectIsRight(t *testing.T) {
	bufferBytes := int64(2 << 20) // calls with larger buffers are skipped
	if runsAllCases() {
		const spaceAroundOutputs = 1 << 20
		bufferBytes = maxLargeBytes + spaceAroundOutputs
	}

	random := newRandom(t)
	p := newTestbed(t, ranksUpTo(t, 4), bufferBytes, random)
	groups := memberLists(t)
	dataTypes := reduce.DataTypes()
	if !runsAllCases() && usesSoftGPU(t) { // the software GPU is slow
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
		canCheckNear := t.Float() && t != driver.Float64 && op != driver.Prod
		if canCheckNear {
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

// checkSmallCounts tests as many counts in each batch as the buffers can hold.
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

const maxSmallCount = 4<<10 + 1 // one more than a round number

// smallCounts returns all counts up to maxSmallCount, or a sample of two.
func (p *testbed) smallCounts() []int64 {
	if !runsAllCases() {
		tinyCount := p.random.Int64N(16)
		randomCount := p.random.Int64N(maxSmallCount + 1)
		return []int64{tinyCount, randomCount}
	}

	var counts []int64
	for count := range int64(maxSmallCount + 1) {
		counts = append(counts, count)
	}

	return counts
}

const maxLargeBytes = 256 << 20

// checkLargeCounts tests calls whose larger buffer has about 2^n bytes, or a sample of these calls.
func (p *testbed) checkLargeCounts(c trial) {
	p.t.Helper()
	const sampleInterval = 250 // test one call of 250, on average
	const minLargeBytes = 8 << 10
	ranks := len(p.ranks)
	c.count = 1
	send, recv := c.spans(ranks)
	bytesPerCount := max(send, recv) * int64(c.dataType.Size()) // in the larger buffer
	for bytes := int64(minLargeBytes); bytes <= maxLargeBytes; bytes *= 2 {
		roundCount := bytes / bytesPerCount
		for _, count := range []int64{roundCount - 1, roundCount, roundCount + 1} {
			if !runsAllCases() && p.random.IntN(sampleInterval) != 0 {
				continue
			}

			b := batch{layout: c.layout}
			c.count = count
			c.root = p.random.IntN(ranks)
			p.add(&b, c) // leaves b empty if the buffers are too small
			isLargest := bytes == maxLargeBytes
			// A comparison of whole outputs is slow, so only one type and reduction has it.
			compareWhole := isLargest && c.dataType == driver.BFloat16 && c.op == driver.Sum
			p.run(&b, compareWhole)
		}
	}
}

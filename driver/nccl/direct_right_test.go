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

// The test of this file makes collectives on the direct path with many operations, types, counts
// and places of the buffers. By default, it runs a random sample of these cases. For example, a
// random sample of all counts from 0 to 4097 is 9 and 1234.

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
	const sequence = 1 // any constant: the seed alone selects the numbers
	return rand.New(rand.NewPCG(seed, sequence))
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

// TestDirectIsRight compares the outputs of collectives, and the memory around the outputs, with
// results computed on the host. Sums must have the same bits as float32 sums in rank order. On the
// software GPU, the sample consists of one random group and half of the types.
func TestDirectIsRight(t *testing.T) {
	bufferBytes := int64(2 << 20) // larger calls are skipped
	if runsAllCases() {
		bufferBytes = maxLargeBytes + 1<<20 // the largest calls, with room around their outputs
	}

	random := newRandom(t)
	p := newTestbed(t, ranksUpTo(t, 4), bufferBytes, random)
	groups := memberLists(t)
	dataTypes := reduce.DataTypes()
	if !runsAllCases() && usesSoftGPU(t) {
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

// checkCopies tests all operations that only move elements of type t.
func (p *testbed) checkCopies(t driver.DataType) {
	p.t.Helper()
	for _, o := range []driver.Operation{driver.AllGather, driver.Broadcast, driver.AllToAll} {
		p.checkOperation(trial{layout: layout{dataType: t}, operation: o})
	}
}

// checkReductions tests all operations that reduce elements of type t, with each reduction that
// direct kernels support.
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

// checkOperation tests an operation in place and out of place, inside and outside windows.
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

// checkSmallCounts tests the call c with the smallCounts. It collects calls in a batch until the
// buffers are full, and then runs the batch.
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
			b = batch{layout: c.layout} // the next batch begins with c
			p.add(&b, c)
		}
	}

	p.run(&b, compareWhole)
}

// maxSmallCount is the largest count that checkSmallCounts tests.
const maxSmallCount = 4097

// smallCounts returns all counts up to maxSmallCount. The random sample consists of a count below
// 16 and any other.
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

// maxLargeBytes is the size of the largest buffers that checkLargeCounts tests.
const maxLargeBytes = 256 << 20

// checkLargeCounts tests calls whose larger buffer has 2^n bytes, and calls with a count that is
// greater or smaller by 1. The random sample consists of one in 250 of them.
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
			p.add(&b, c) // adds nothing, and run does nothing, if the buffers are too small
			// To save time, compare the whole output only for the largest sums of one type.
			isLargest := bytes == maxLargeBytes
			compareWhole := isLargest && c.dataType == driver.BFloat16 && c.op == driver.Sum
			p.run(&b, compareWhole)
		}
	}
}

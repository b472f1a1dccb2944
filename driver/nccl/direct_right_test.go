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

// runsAllCases reports whether tests of the direct path run all cases, which takes minutes on GPUs,
// instead of a random sample.
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

// memberLists returns groups of two, three and four ranks. With four GPUs, the group of three ranks
// skips one GPU.
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

// TestDirectIsRight compares the outputs of collectives, and the memory around them, with results
// computed on the host. Sums must have the same bits as float32 sums in rank order.
func TestDirectIsRight(t *testing.T) {
	size := int64(2 << 20)
	if runsAllCases() {
		size = 256<<20 + 1<<20
	}
	ranks, random := ranksUpTo(t, 4), newRandom(t)
	p, memberLists, dataTypes := newTestbed(t, ranks, size, random), memberLists(t), reduce.DataTypes()
	if !runsAllCases() && usesSoftGPU(t) {
		memberLists = memberLists[random.IntN(len(memberLists)):][:1]
		random.Shuffle(len(dataTypes), func(i, j int) {
			dataTypes[i], dataTypes[j] = dataTypes[j], dataTypes[i]
		})
		dataTypes = dataTypes[:len(dataTypes)/2]
	}
	for _, members := range memberLists {
		p.regroupAndRegister(members...)
		for _, dataType := range dataTypes {
			begin, before := time.Now(), p.tested
			p.drawInputs(dataType)
			p.checkCopies(dataType)
			p.checkReductions(dataType)
			if runsAllCases() {
				fmt.Printf("ranks %v, %v: %d calls are correct, after %v\n", members, dataType,
					p.tested-before, time.Since(begin).Round(time.Millisecond))
			}
		}
	}
	t.Logf("%d calls", p.tested)
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
		if t.Float() && t != driver.Float64 && op != driver.Prod {
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
	b := batch{layout: c.layout}
	for _, c.count = range p.smallCounts() {
		c.root = p.random.IntN(len(p.ranks))
		if p.add(&b, c) {
			p.run(&b, true)
			b = batch{layout: c.layout}
			p.add(&b, c)
		}
	}
	p.run(&b, true)
}

// maxSmallCount is the largest count that checkSmallCounts tests.
const maxSmallCount = 4097

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

// checkLargeCounts tests buffers of 2^n bytes, and buffers with one element more or fewer.
func (p *testbed) checkLargeCounts(c trial) {
	p.t.Helper()
	ranks := len(p.ranks)
	c.count = 1
	send, recv := c.spans(ranks)
	one := max(send, recv) * int64(c.dataType.Size())
	for bytes := int64(8 << 10); bytes <= 256<<20; bytes *= 2 {
		for _, c.count = range []int64{bytes/one - 1, bytes / one, bytes/one + 1} {
			if !runsAllCases() && p.random.IntN(250) != 0 {
				continue
			}
			b := batch{layout: c.layout}
			c.root = p.random.IntN(ranks)
			p.add(&b, c)
			p.run(&b, bytes == 256<<20 && c.dataType == driver.BFloat16 && c.op == driver.Sum)
		}
	}
}

package nccl

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/formula"
	"symmem/internal/reduce"
)

// full reports whether tests of the direct path run all cases, which takes minutes on GPUs.
// Otherwise they run a random sample.
func full() bool { return os.Getenv("SYMMEM_TEST_FULL") == "1" }

// drawing returns a random generator, and logs its seed if the test fails.
func drawing(t *testing.T) *rand.Rand {
	t.Helper()
	begin := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("drawn from %#x", begin)
		}
	})
	return rand.New(rand.NewPCG(begin, 1))
}

// casts returns the groups to test: of two ranks, of three (not all adjacent if the machine has
// four GPUs), and of four.
func casts(t *testing.T) [][]int {
	t.Helper()
	switch n := devices(t); {
	case n < 3:
		return [][]int{{0, 1}}
	case n == 3:
		return [][]int{{0, 1}, {0, 1, 2}}
	default:
		return [][]int{{0, 1}, {0, 2, 3}, {0, 1, 2, 3}}
	}
}

// TestDirectIsRight compares the output of collectives, and the memory around it, with results
// computed on the host. Sums must equal those in float32 in the order of ranks, bit by bit on all
// ranks, and be close to those in float64.
func TestDirectIsRight(t *testing.T) {
	size := int64(2 << 20)
	if full() {
		size = 256<<20 + 1<<20
	}
	ranks, draws := atMost(t, 4), drawing(t)
	p, casts := newPitch(t, ranks, size, draws), casts(t)
	if !full() && soft(t) {
		casts = casts[draws.IntN(len(casts)):][:1]
	}
	for _, members := range casts {
		p.enroll(members...)
		for _, dataType := range reduce.DataTypes() {
			began, before := time.Now(), p.tested
			p.sow(dataType)
			p.proveCopies(dataType)
			p.proveReductions(dataType)
			if full() {
				fmt.Printf("ranks %v, %v: %d calls are correct, after %v\n", members, dataType,
					p.tested-before, time.Since(began).Round(time.Millisecond))
			}
		}
	}
	t.Logf("%d calls", p.tested)
}

func (p *pitch) proveCopies(t driver.DataType) {
	p.t.Helper()
	for _, o := range []driver.Operation{driver.AllGather, driver.Broadcast, driver.AllToAll} {
		p.prove(trial{way: way{dataType: t}, operation: o})
	}
}

func (p *pitch) proveReductions(t driver.DataType) {
	p.t.Helper()
	for _, op := range driver.ReductionsOf(t) {
		if op.Kernel() == 0 {
			continue
		}
		p.reduced = formula.Reduce(driver.RankOrder, op, t, p.inputs)
		if t.Float() && t != driver.Float64 && op != driver.Prod {
			if err := near(t, op, p.inputs, p.reduced); err != nil {
				p.t.Fatal(err)
			}
		}
		for _, o := range []driver.Operation{driver.AllReduce, driver.ReduceScatter, driver.Reduce} {
			p.prove(trial{way: way{dataType: t}, operation: o, op: op})
		}
	}
}

// prove tests an operation in place and not, in symmetric memory and not.
func (p *pitch) prove(c trial) {
	p.t.Helper()
	for _, c.inPlace = range []bool{false, true} {
		for _, c.loose = range []bool{false, true} {
			p.proveSmall(c)
			p.proveLarge(c)
		}
	}
}

// proveSmall tests small counts, all of them in a full test.
func (p *pitch) proveSmall(c trial) {
	p.t.Helper()
	b := batch{way: c.way}
	for _, c.count = range p.smallCounts() {
		c.root = p.draws.IntN(len(p.ranks))
		if p.add(&b, c) {
			p.run(&b, true)
			b = batch{way: c.way}
			p.add(&b, c)
		}
	}
	p.run(&b, true)
}

// mostSmall is the largest count of proveSmall.
const mostSmall = 4097

func (p *pitch) smallCounts() []int64 {
	var counts []int64
	if full() {
		for count := range int64(mostSmall + 1) {
			counts = append(counts, count)
		}
		return counts
	}
	return []int64{p.draws.Int64N(16), p.draws.Int64N(mostSmall + 1)}
}

// proveLarge tests sizes that are powers of two, and one element more and less, as far as they fit.
func (p *pitch) proveLarge(c trial) {
	p.t.Helper()
	ranks := len(p.ranks)
	c.count = 1
	send, recv := c.spans(ranks)
	one := max(send, recv) * int64(c.dataType.Size())
	for bytes := int64(8 << 10); bytes <= 256<<20; bytes *= 2 {
		for _, c.count = range []int64{bytes/one - 1, bytes / one, bytes/one + 1} {
			if !full() && p.draws.IntN(250) != 0 {
				continue
			}
			b := batch{way: c.way}
			c.root = p.draws.IntN(ranks)
			p.add(&b, c)
			p.run(&b, bytes == 256<<20 && c.dataType == driver.BFloat16 && c.op == driver.Sum)
		}
	}
}

package drivertest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"symmem/driver"
)

var formulaClauses = []clause{
	{"reductions in rank order match bit for bit", testFormula(driver.RankOrder)},
	{"reductions in tree order match bit for bit", testFormula(driver.Tree)},
	{"reductions in rounded tree order match bit for bit", testFormula(driver.RoundedTree)},
	{"special values without a formula", testSpecials(driver.AnyFormula)},
	{"special values in rank order", testSpecials(driver.RankOrder)},
	{"special values in tree order", testSpecials(driver.Tree)},
	{"special values in rounded tree order", testSpecials(driver.RoundedTree)},
}

// scope returns how many elements to try in total for each type and reduction, and the largest
// count of a call.
func (h Harness) scope() (elements, largest int64) {
	switch {
	case os.Getenv("SYMMEM_TEST_FULL") == "1":
		return 1e6, 16 << 20
	case h.Slow:
		return 1000, 1000
	default:
		return 1e4, 1 << 13
	}
}

// testFormula tries every type and reduction on several numbers of ranks. It draws operations,
// sizes, roots and offsets at random, and also whether calls are in place, whether they are
// replayed, and whether their buffers are registered. Paths that do not support the group's formula
// are skipped.
func testFormula(f driver.Formula) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		seed := uint64(time.Now().UnixNano())
		if fixed, err := strconv.ParseUint(os.Getenv("SYMMEM_TEST_SEED"), 10, 64); err == nil {
			seed = fixed
		}
		t.Logf("SYMMEM_TEST_SEED=%d", seed)
		for _, n := range []int{2, 3, 4, 8} {
			if f.Fits(n) == nil {
				t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) { tryFormula(t, h, f, n, seed) })
			}
		}
	}
}

func tryFormula(t *testing.T, h Harness, f driver.Formula, n int, seed uint64) {
	elements, largest := h.scope()
	b := newFixture(t, h, n, 8*largest+4096, options{
		check: true, formula: f, lifetime: longTimeout * time.Duration(1+elements/1e5),
	})
	draws := rand.New(rand.NewPCG(seed, uint64(n)))
	tried := 0
	for _, dataType := range dataTypes {
		for _, op := range driver.ReductionsOf(dataType) {
			for done := int64(0); done < elements; {
				c := drawReduction(draws, n, largest)
				c.dataType, c.op, c.formula, c.seed = dataType, op, f, draws.Uint64()
				tried += tryPaths(b, &c)
				done += c.count * int64(n)
			}
		}
	}
	if tried == 0 {
		t.Skipf("no path of the backend supports the formula %v", f)
	}
	t.Logf("%d calls", tried)
}

// testSpecials reduces NaNs, infinities, zeros, subnormal numbers and the largest numbers of
// every type, on every path that supports the group's formula. It uses three ranks, because
// their inputs can cover all combinations of special values.
func testSpecials(f driver.Formula) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		if f == driver.AnyFormula && h.Unordered {
			t.Skip(fmt.Errorf("special values in the backend's library: %w", driver.ErrUnsupported))
		}
		for _, n := range []int{2, 3, 4} {
			if f.Fits(n) == nil {
				t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) { trySpecials(t, h, f, n) })
			}
		}
	}
}

func trySpecials(t *testing.T, h Harness, f driver.Formula, n int) {
	const combinations = 14 * 14 * 14
	b := newFixture(t, h, n, 8*combinations+4096, options{check: true, formula: f})
	tried := 0
	for _, dataType := range dataTypes {
		for _, op := range driver.ReductionsOf(dataType) {
			c := trial{
				operation: driver.AllReduce, dataType: dataType, op: op, count: combinations,
				formula: f, special: true, inPlace: op%2 == 0,
			}
			tried += tryPaths(b, &c)
		}
	}
	if tried == 0 {
		t.Skipf("no path of the backend supports the formula %v", f)
	}
}

// drawReduction draws a random reduction. The caller must set the data type, ReduceOp and
// formula.
func drawReduction(draws *rand.Rand, n int, largest int64) trial {
	operations := []driver.Operation{driver.AllReduce, driver.ReduceScatter, driver.Reduce}
	c := trial{
		operation: operations[draws.IntN(len(operations))],
		count:     1 + int64(draws.Uint64()>>(64-draws.IntN(25)))%largest,
		root:      draws.IntN(n), inPlace: draws.IntN(2) == 0, unregistered: draws.IntN(3) == 0,
		skew: draws.Int64N(17), replayed: draws.IntN(4) == 0,
	}
	if c.operation == driver.ReduceScatter {
		c.count = 1 + c.count/int64(n)
	}
	return c
}

// tryPaths tries a reduction on every path that supports it, and returns the number of these paths.
func tryPaths(b *fixture, c *trial) (tried int) {
	b.t.Helper()
	c.prepare(b.harness, len(b.ranks))
	for _, c.path = range b.harness.Paths {
		r := b.ranks[0]
		unregistered := c.unregistered
		c.unregistered = unregistered && c.path != driver.PathWindow
		call := c.uncheckedCall(r, b.send[0], b.recv[0])
		if r.group.Offer(call).Refusal(c.path) == nil {
			b.try(c)
			tried++
		}
		c.unregistered = unregistered
	}
	return tried
}

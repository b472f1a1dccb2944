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

// testFormula tries every type and reduction on several numbers of ranks. Everything else is
// random. Paths that do not support the group's formula are skipped.
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
	fx := newFixture(t, h, n, 8*largest+4096, options{
		check: true, formula: f, lifetime: longTimeout * time.Duration(1+elements/1e5),
	})
	draws := rand.New(rand.NewPCG(seed, uint64(n)))
	tried := 0
	for _, dataType := range dataTypes {
		for _, op := range driver.ReductionsOf(dataType) {
			for done := int64(0); done < elements; {
				tr := drawReduction(draws, n, largest)
				tr.dataType, tr.op, tr.formula, tr.seed = dataType, op, f, draws.Uint64()
				tried += tryPaths(fx, &tr)
				done += tr.count * int64(n)
			}
		}
	}
	if tried == 0 {
		t.Skipf("no path of the backend supports the formula %v", f)
	}
	t.Logf("%d calls", tried)
}

// testSpecials reduces special values on every path that supports the group's formula.
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
	fx := newFixture(t, h, n, 8*combinations+4096, options{check: true, formula: f})
	tried := 0
	for _, dataType := range dataTypes {
		for _, op := range driver.ReductionsOf(dataType) {
			tr := trial{
				operation: driver.AllReduce, dataType: dataType, op: op, count: combinations,
				formula: f, special: true, inPlace: op%2 == 0,
			}
			tried += tryPaths(fx, &tr)
		}
	}
	if tried == 0 {
		t.Skipf("no path of the backend supports the formula %v", f)
	}
}

// drawReduction leaves the data type, the ReduceOp and the formula to the caller.
func drawReduction(draws *rand.Rand, n int, largest int64) trial {
	operations := []driver.Operation{driver.AllReduce, driver.ReduceScatter, driver.Reduce}
	tr := trial{
		operation: operations[draws.IntN(len(operations))],
		count:     1 + int64(draws.Uint64()>>(64-draws.IntN(25)))%largest,
		root:      draws.IntN(n), inPlace: draws.IntN(2) == 0, unregistered: draws.IntN(3) == 0,
		skew: draws.Int64N(17), replayed: draws.IntN(4) == 0,
	}
	if tr.operation == driver.ReduceScatter {
		tr.count = 1 + tr.count/int64(n)
	}
	return tr
}

// tryPaths tries a reduction on every path that supports it, and returns their number.
func tryPaths(fx *fixture, tr *trial) (tried int) {
	fx.t.Helper()
	tr.prepare(fx.harness, len(fx.ranks))
	for _, tr.path = range fx.harness.Paths {
		r := fx.ranks[0]
		unregistered := tr.unregistered
		tr.unregistered = unregistered && tr.path != driver.PathWindow
		call := tr.uncheckedCall(r, fx.send[0], fx.recv[0])
		if r.group.Offer(call).Refusal(tr.path) == nil {
			fx.try(tr)
			tried++
		}
		tr.unregistered = unregistered
	}
	return tried
}

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

var formulaRequirements = []requirement{
	{"reductions in rank order match bit for bit", testFormula(driver.RankOrder)},
	{"reductions in tree order match bit for bit", testFormula(driver.Tree)},
	{"reductions in rounded tree order match bit for bit", testFormula(driver.RoundedTree)},
	{"reductions of special values without a formula", testSpecialValues(driver.AnyFormula)},
	{"reductions of special values in rank order", testSpecialValues(driver.RankOrder)},
	{"reductions of special values in tree order", testSpecialValues(driver.Tree)},
	{"reductions of special values in rounded tree order", testSpecialValues(driver.RoundedTree)},
}

// formulaTestSize returns the total number of elements to reduce for each type and reduction, and
// the largest count of a call.
func (h Harness) formulaTestSize() (elementCount, maxCount int64) {
	switch {
	case os.Getenv("SYMMEM_TEST_FULL") == "1":
		return 1e6, 16 << 20
	case h.Slow:
		return 1000, 1000
	default:
		return 1e4, 1 << 13
	}
}

// testFormula returns a test that tries every type and reduction in groups with formula f, on
// several numbers of ranks, with random arguments, on the paths that support f.
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
	elementCount, maxCount := h.formulaTestSize()
	bw := newBufferWorld(t, h, n, 8*maxCount+4096, options{
		checkCalls: true, formula: f, lifetime: longTimeout * time.Duration(1+elementCount/1e5),
	})
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	triedCalls := 0
	for _, dataType := range dataTypes {
		for _, op := range driver.ReductionsOf(dataType) {
			for triedElements := int64(0); triedElements < elementCount; {
				tr := randomReduction(random, n, maxCount)
				tr.dataType, tr.op, tr.formula, tr.seed = dataType, op, f, random.Uint64()
				triedCalls += tryPaths(bw, &tr)
				triedElements += tr.count * int64(n)
			}
		}
	}
	if triedCalls == 0 {
		t.Skipf("no path of the backend supports the formula %v", f)
	}
	t.Logf("%d calls", triedCalls)
}

func testSpecialValues(f driver.Formula) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		if f == driver.AnyFormula && h.Unordered {
			t.Skip(fmt.Errorf("special values without a formula: %w", driver.ErrUnsupported))
		}
		for _, n := range []int{2, 3, 4} {
			if f.Fits(n) == nil {
				t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) { trySpecialValues(t, h, f, n) })
			}
		}
	}
}

func trySpecialValues(t *testing.T, h Harness, f driver.Formula, n int) {
	const combinations = 14 * 14 * 14 // of a float's special values on three ranks
	bw := newBufferWorld(t, h, n, 8*combinations+4096, options{checkCalls: true, formula: f})
	triedCalls := 0
	for _, dataType := range dataTypes {
		for _, op := range driver.ReductionsOf(dataType) {
			tr := trial{
				operation: driver.AllReduce, dataType: dataType, op: op, count: combinations,
				formula: f, hasSpecialInputs: true, isInPlace: op%2 == 0,
			}
			triedCalls += tryPaths(bw, &tr)
		}
	}
	if triedCalls == 0 {
		t.Skipf("no path of the backend supports the formula %v", f)
	}
}

// randomReduction returns a random trial. The caller must set dataType, op, formula and seed.
func randomReduction(random *rand.Rand, n int, maxCount int64) trial {
	operations := []driver.Operation{driver.AllReduce, driver.ReduceScatter, driver.Reduce}
	tr := trial{
		operation: operations[random.IntN(len(operations))],
		count:     1 + int64(random.Uint64()>>(64-random.IntN(25)))%maxCount,
		root:      random.IntN(n), isInPlace: random.IntN(2) == 0,
		isUnregistered: random.IntN(3) == 0,
		shift:          random.Int64N(17), isReplayed: random.IntN(4) == 0,
	}
	if tr.operation == driver.ReduceScatter {
		tr.count = 1 + tr.count/int64(n)
	}
	return tr
}

// tryPaths tries a reduction on every path that supports it, and returns the number of calls.
func tryPaths(bw *bufferWorld, tr *trial) (triedCalls int) {
	bw.t.Helper()
	tr.prepare(bw.harness, len(bw.ranks))
	for _, tr.path = range bw.harness.Paths {
		r := bw.ranks[0]
		isUnregistered := tr.isUnregistered
		tr.isUnregistered = isUnregistered && tr.path != driver.PathWindow
		call := tr.uncheckedCall(r, bw.send[0], bw.recv[0])
		if r.group.Offer(call).Refusal(tr.path) == nil {
			bw.tryCollective(tr)
			triedCalls++
		}
		tr.isUnregistered = isUnregistered
	}
	return triedCalls
}

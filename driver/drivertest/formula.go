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

// The rounded result of a floating-point reduction depends on the order of its operations. A
// formula fixes this order: for four ranks, RankOrder is ((a+b)+c)+d and Tree is (a+b)+(c+d).
// RoundedTree is Tree with partial sums of 16-bit floats rounded to 16 bits.
//
// A trial is a call with its inputs and expected results. A path is an algorithm of the backend.

var formulaRequirements = []requirement{
	{"reductions in rank order match bit for bit", testFormula(driver.RankOrder)},
	{"reductions in tree order match bit for bit", testFormula(driver.Tree)},
	{"reductions in rounded tree order match bit for bit", testFormula(driver.RoundedTree)},
	{"reductions of special values without a formula", testSpecialValues(driver.AnyFormula)},
	{"reductions of special values in rank order", testSpecialValues(driver.RankOrder)},
	{"reductions of special values in tree order", testSpecialValues(driver.Tree)},
	{"reductions of special values in rounded tree order", testSpecialValues(driver.RoundedTree)},
}

// formulaTestSize returns the least number of input elements to try for each type and reduction,
// and the largest count of a call.
func (h Harness) formulaTestSize() (elementCount, maxCount int64) {
	switch {
	case os.Getenv("SYMMEM_TEST_FULL") == "1":
		return 1e6, 16 << 20
	case h.Slow:
		return 1000, 1000
	default:
		return 1e4, 8 << 10
	}
}

// formulaSeed returns a new seed. To repeat a test, set SYMMEM_TEST_SEED to the seed in its log.
func formulaSeed() uint64 {
	seed, err := strconv.ParseUint(os.Getenv("SYMMEM_TEST_SEED"), 10, 64)
	if err != nil {
		return uint64(time.Now().UnixNano())
	}

	return seed
}

// testFormula returns a test of random reductions with formula f.
func testFormula(f driver.Formula) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		seed := formulaSeed()
		t.Logf("SYMMEM_TEST_SEED=%d", seed)
		for _, n := range []int{2, 3, 4, 8} {
			if f.Fits(n) == nil { // a tree needs a power of two
				t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) { tryFormula(t, h, f, n, seed) })
			}
		}
	}
}

// reductionBufferBytes returns the size of a buffer for a trial of count elements of any type.
func reductionBufferBytes(count int64) int64 {
	const largestElement, canaryAndShiftBytes = 8, 4096
	return largestElement*count + canaryAndShiftBytes
}

func tryFormula(t *testing.T, h Harness, f driver.Formula, n int, seed uint64) {
	elementCount, maxCount := h.formulaTestSize()
	lifetime := longTimeout * time.Duration(1+elementCount/1e5)
	bw := newBufferWorld(t, h, n, reductionBufferBytes(maxCount), options{
		checkCalls: true, formula: f, lifetime: lifetime,
	})
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	triedCalls := 0
	for _, dataType := range dataTypes {
		for _, op := range driver.ReductionsOf(dataType) {
			triedElements := int64(0)
			for triedElements < elementCount {
				tr := randomReduction(random, n, maxCount)
				tr.dataType = dataType
				tr.op = op
				tr.formula = f
				tr.seed = random.Uint64()
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

// testSpecialValues returns a test that reduces values such as NaN, infinity and -0 with formula f.
func testSpecialValues(f driver.Formula) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		if f == driver.AnyFormula && h.Unordered {
			t.Skip("the result depends on the order of the ranks")
		}

		for _, n := range []int{2, 3, 4} {
			if f.Fits(n) == nil {
				t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) { trySpecialValues(t, h, f, n) })
			}
		}
	}
}

func trySpecialValues(t *testing.T, h Harness, f driver.Formula, n int) {
	const specialValueCount = 14
	const combinations = specialValueCount * specialValueCount * specialValueCount // on three ranks
	bw := newBufferWorld(t, h, n, reductionBufferBytes(combinations), options{
		checkCalls: true, formula: f,
	})
	triedCalls := 0
	for _, dataType := range dataTypes {
		for _, op := range driver.ReductionsOf(dataType) {
			isEverySecond := op%2 == 0
			tr := trial{
				operation: driver.AllReduce, dataType: dataType, op: op, count: combinations,
				formula: f, hasSpecialInputs: true, isInPlace: isEverySecond,
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
	operation := operations[random.IntN(len(operations))]
	tr := trial{
		operation:      operation,
		count:          randomCount(random, maxCount),
		root:           random.IntN(n),
		isInPlace:      random.IntN(2) == 0,
		isUnregistered: random.IntN(3) == 0,
		shift:          random.Int64N(17),
		isReplayed:     random.IntN(4) == 0,
	}
	if tr.operation == driver.ReduceScatter { // count is per rank
		tr.count = 1 + tr.count/int64(n)
	}

	return tr
}

// randomCount returns a number from 1 to maxCount, often a small one.
func randomCount(random *rand.Rand, maxCount int64) int64 {
	value := random.Uint64()
	bitCount := random.IntN(25)
	highBits := value >> (64 - bitCount) // 0 if bitCount is 0
	return 1 + int64(highBits)%maxCount
}

// tryPaths tries a reduction on every path that supports it, and returns the number of these paths.
func tryPaths(bw *bufferWorld, tr *trial) (triedCalls int) {
	bw.t.Helper()
	tr.prepare(bw.harness, len(bw.ranks))
	r := bw.ranks[0] // all ranks support the same paths
	for _, path := range bw.harness.Paths {
		variant := *tr
		variant.path = path
		if path == driver.PathWindow { // requires registered buffers
			variant.isUnregistered = false
		}

		call := variant.callOnPath(r, bw.send[0], bw.recv[0])
		if accepts(r.group, call) {
			bw.tryCollective(&variant)
			triedCalls++
		}
	}

	return triedCalls
}

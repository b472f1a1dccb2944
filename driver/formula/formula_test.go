package formula_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"unsafe"

	"symmem/driver"
	"symmem/driver/formula"
	"symmem/internal/reduce"
)

// Reductions take and return the bytes of elements, and inputs holds the bytes of each rank. A
// formula is the order in which a reduction combines the ranks' elements.

// canonicalNaN holds the bits of each NaN in results of float32, except in the average of a single
// rank, which is its input.
const canonicalNaN = 0x7FFFFFFF

// floats returns the bytes of float32 values.
func floats(values ...float32) []byte {
	var out []byte
	for _, v := range values {
		out = binary.NativeEndian.AppendUint32(out, math.Float32bits(v))
	}

	return out
}

// TestSumsDependOnOrderOfFormula compares sums with results computed by hand. In float32, 2^24 + 1
// is rounded to 2^24.
func TestSumsDependOnOrderOfFormula(t *testing.T) {
	const big = 1 << 24
	inputs := [][]byte{floats(big), floats(1), floats(1), floats(1)}
	for f, want := range map[driver.Formula]float32{
		driver.RankOrder:   big,     // ((big + 1) + 1) + 1
		driver.Tree:        big + 2, // (big + 1) + (1 + 1)
		driver.RoundedTree: big + 2, // like Tree, because it rounds only 16-bit floats more often
	} {
		got := formula.Reduce(f, driver.Sum, driver.Float32, inputs)
		if !bytes.Equal(got, floats(want)) {
			t.Errorf("%v sum: got bytes %x, want %x (%v)", f, got, floats(want), want)
		}
	}
}

// TestFloat16IsRoundedOnceOrAfterEachAddition adds values whose partial sums float16 does not
// represent. RoundedTree must round each of them. The other formulas must add in float32 and round
// the result once.
func TestFloat16IsRoundedOnceOrAfterEachAddition(t *testing.T) {
	value := func(v float32) []byte {
		return binary.NativeEndian.AppendUint16(nil, reduce.Float16Bits(v))
	}
	// From 2048 on, float16 represents only even integers. The exact sum is 2051.
	inputs := [][]byte{value(2048), value(1), value(1), value(1)}
	for f, want := range map[driver.Formula]float32{
		driver.RankOrder:   2052, // 2051 is halfway between 2050 and 2052, and rounds to even
		driver.Tree:        2052, // the same
		driver.RoundedTree: 2050, // 2048 + 1 is rounded to 2048, and 2048 + (1 + 1) is exact
	} {
		got := formula.Reduce(f, driver.Sum, driver.Float16, inputs)
		if !bytes.Equal(got, value(want)) {
			t.Errorf("%v sum: got bytes %x, want %x (%v)", f, got, value(want), want)
		}
	}
}

// TestZerosNaNsAndAveragesFollowDocumentation compares results with those that the page
// docs/reference/deterministic.md defines, bit by bit.
func TestZerosNaNsAndAveragesFollowDocumentation(t *testing.T) {
	const negativeZeroBits = 1 << 31
	negativeZero := math.Float32frombits(negativeZeroBits)
	nan := math.Float32frombits(0xFFC01234) // a NaN other than canonicalNaN
	infinity := float32(math.Inf(1))
	for _, c := range []struct {
		op       driver.ReduceOp
		a, b     float32
		wantBits uint32
	}{
		{op: driver.Sum, a: negativeZero, b: negativeZero, wantBits: negativeZeroBits},
		{op: driver.Sum, a: negativeZero, b: 0, wantBits: 0},
		{op: driver.Min, a: 0, b: negativeZero, wantBits: negativeZeroBits},
		{op: driver.Max, a: negativeZero, b: 0, wantBits: 0},
		{op: driver.Max, a: nan, b: 1, wantBits: canonicalNaN},
		{op: driver.Sum, a: infinity, b: -infinity, wantBits: canonicalNaN},
		{op: driver.Prod, a: infinity, b: 0, wantBits: canonicalNaN},
		// Bits 1 and 2 are the smallest numbers. The average, 1.5 times the smallest, rounds to even.
		{op: driver.Avg, a: math.Float32frombits(1), b: math.Float32frombits(2), wantBits: 2},
	} {
		inputs := [][]byte{floats(c.a), floats(c.b)}
		got := formula.Reduce(driver.RankOrder, c.op, driver.Float32, inputs)
		if bits := binary.NativeEndian.Uint32(got); bits != c.wantBits {
			t.Errorf("%v of %v and %v: got bits %#x, want %#x", c.op, c.a, c.b, bits, c.wantBits)
		}
	}
}

// TestPremulSumOfSingleRankIsMultiplied reduces the input of one rank. No sum is computed, but the
// result must still be multiplied by the factor.
func TestPremulSumOfSingleRankIsMultiplied(t *testing.T) {
	want := floats(4 * float32(formula.Factor(driver.PremulSum)))
	for f := range driver.RoundedTree + 1 { // all formulas
		got := formula.Reduce(f, driver.PremulSum, driver.Float32, [][]byte{floats(4)})
		if !bytes.Equal(got, want) {
			t.Errorf("%v premul_sum of a single rank: got bytes %x, want %x", f, got, want)
		}
	}
}

// TestAverageOfSingleRankIsItsInput averages a NaN of one rank, which must keep its bits.
func TestAverageOfSingleRankIsItsInput(t *testing.T) {
	input := floats(math.Float32frombits(0xFFC01234)) // a NaN other than canonicalNaN
	got := formula.Reduce(driver.RankOrder, driver.Avg, driver.Float32, [][]byte{input})
	if !bytes.Equal(got, input) {
		t.Errorf("average of a single rank: got bytes %x, want its input %x", got, input)
	}
}

// TestAveragesOfIntegersWrapAndTruncate averages two int8 elements of two ranks. Sums must wrap
// around, and divisions must round toward zero.
func TestAveragesOfIntegersWrapAndTruncate(t *testing.T) {
	int8s := func(values ...int8) (out []byte) {
		for _, v := range values {
			out = append(out, byte(v))
		}

		return out
	}
	inputs := [][]byte{int8s(100, -1), int8s(100, -2)}
	// 100 + 100 wraps to -56, and -56 / 2 is -28. -1 + -2 is -3, and -3 / 2 is truncated to -1.
	want := int8s(-28, -1)
	got := formula.Reduce(driver.RankOrder, driver.Avg, driver.Int8, inputs)
	if !bytes.Equal(got, want) {
		t.Errorf("averages of int8: got bytes %x, want %x", got, want)
	}
}

// TestAveragesDoNotOverflow averages inputs whose sums are not finite, and compares the averages
// with results computed by hand. Such inputs must be scaled down before they are added.
func TestAveragesDoNotOverflow(t *testing.T) {
	const (
		huge     = 0x1.8p127 // finite, but huge + huge is not
		largest  = math.MaxFloat32
		smallest = math.SmallestNonzeroFloat32
	)
	inf := float32(math.Inf(1))
	nan := math.Float32frombits(canonicalNaN)
	for _, c := range []struct {
		order driver.Formula
		in    []float32 // by rank
		want  float32
	}{
		{order: driver.RankOrder, in: []float32{3e38, 3e38}, want: 3e38}, // 3e38 is below largest
		{order: driver.RankOrder, in: []float32{-huge, -huge, -huge}, want: -huge},
		{order: driver.RankOrder, in: []float32{huge, huge, -huge, -huge}, want: 0},
		// Without scaling, the sum is NaN.
		{order: driver.Tree, in: []float32{huge, huge, -huge, -huge}, want: 0},
		{
			order: driver.RankOrder,
			in:    []float32{largest, largest, largest, largest},
			want:  largest,
		},
		{order: driver.RankOrder, in: []float32{huge, huge, -inf}, want: -inf},
		{order: driver.RankOrder, in: []float32{huge, huge, -inf, inf}, want: nan},
		{order: driver.RankOrder, in: []float32{huge, nan, huge}, want: nan},
		// The inputs of six ranks are scaled by 1/8. 4*smallest becomes half of the smallest number,
		// which is rounded to zero.
		{
			order: driver.RankOrder,
			in:    []float32{huge, huge, -huge, -huge, 4 * smallest, 4 * smallest},
			want:  0,
		},
		// 48*smallest becomes 6*smallest, which is exact. The average is 2 * 48 / 6.
		{
			order: driver.RankOrder,
			in:    []float32{huge, huge, -huge, -huge, 48 * smallest, 48 * smallest},
			want:  16 * smallest,
		},
	} {
		var inputs [][]byte
		for _, v := range c.in {
			inputs = append(inputs, floats(v))
		}

		got := formula.Reduce(c.order, driver.Avg, driver.Float32, inputs)
		if !bytes.Equal(got, floats(c.want)) {
			t.Errorf("%v average of %v: got bytes %x, want %x (%v)", c.order, c.in, got,
				floats(c.want), c.want)
		}
	}
}

// TestAverageOfLargestNumbersIsFinite averages the largest finite elements. If their average is
// finite, averages of smaller elements are finite, too, because rounding is monotonic.
func TestAverageOfLargestNumbersIsFinite(t *testing.T) {
	const maxRanks = 1024
	for dt, largestBits := range map[driver.DataType]uint64{ // bits of the largest finite number
		driver.Float64:  0x7FEFFFFFFFFFFFFF,
		driver.Float32:  0x7F7FFFFF,
		driver.Float16:  0x7BFF,
		driver.BFloat16: 0x7F7F,
	} {
		largest := formula.AppendBits(nil, dt, largestBits)
		infinity := formula.AppendBits(nil, dt, largestBits+1) // the next bits are those of infinity
		for ranks := 2; ranks <= maxRanks; ranks++ {
			inputs := slices.Repeat([][]byte{largest}, ranks)
			for _, f := range formulas(ranks) {
				got := formula.Reduce(f, driver.Avg, dt, inputs)
				if bytes.Equal(got, infinity) {
					t.Fatalf("%v: the %v average on %d ranks is infinite", dt, f, ranks)
				}
			}
		}
	}
}

// formulas returns the formulas that groups of the given size can have. Trees need a power of two.
func formulas(ranks int) []driver.Formula {
	isPowerOfTwo := ranks&(ranks-1) == 0
	if !isPowerOfTwo {
		return []driver.Formula{driver.RankOrder}
	}

	return []driver.Formula{driver.RankOrder, driver.Tree, driver.RoundedTree}
}

// TestHostKernelsComputeFormula compares the results of the host's kernels with the formulas. It
// also checks that sums of the inputs depend on the order of additions. Otherwise, the comparison
// would not detect a wrong order.
func TestHostKernelsComputeFormula(t *testing.T) {
	// Kernels process many elements at once. A prime number leaves a rest.
	const count, seed = 5003, 7
	const minDifferingShare = 0.1 // of elements whose sum changes if the order is reversed
	for _, dt := range reduce.DataTypes() {
		for _, ranks := range []int{2, 3, 4, 8} {
			var inputs [][]byte
			for r := range ranks {
				inputs = append(inputs, formula.Input(dt, seed, r, ranks, count))
			}

			for _, op := range driver.ReductionsOf(dt) {
				name := fmt.Sprintf("%v %v of %d", op, dt, ranks)
				want := formula.Reduce(driver.RankOrder, op, dt, inputs)
				if got := reduceWithKernels(op, dt, inputs); !bytes.Equal(got, want) {
					t.Errorf("%s: the kernels' result differs from the formula", name)
				}

				checkTrees(t, name, op, dt, inputs)
				isOrderRelevant := op == driver.Sum && dt.Float() && ranks > 2
				if !isOrderRelevant {
					continue
				}

				reversed := slices.Clone(inputs)
				slices.Reverse(reversed)
				reversedSum := formula.Reduce(driver.RankOrder, op, dt, reversed)
				if share := differingShare(want, reversedSum, dt); share < minDifferingShare {
					t.Errorf("%s: in reverse order, a share of %.3f of the elements differs, "+
						"want at least %v", name, share, minDifferingShare)
				}
			}
		}
	}
}

// TestLargeInputsHaveAllFractions checks that the large values of floats that cancel use the whole
// range between two powers of two. On a single rank, all floats that cancel are large: from 2^8 to
// 2^14.
func TestLargeInputsHaveAllFractions(t *testing.T) {
	const rank, ranks, count, seed, elementBytes = 0, 1, 5003, 7, 8
	input := formula.Input(driver.Float64, seed, rank, ranks, count)
	largeCount, upperCount := 0, 0
	for ; len(input) > 0; input = input[elementBytes:] {
		value := math.Float64frombits(binary.NativeEndian.Uint64(input))
		isLarge := value >= 1<<8 && value < 1<<14
		if !isLarge {
			continue
		}

		largeCount++
		if fraction, _ := math.Frexp(value); fraction >= 0.75 { // fractions are from 0.5 to 1
			upperCount++
		}
	}

	const minUpperShare, maxUpperShare = 0.45, 0.55
	share := float64(upperCount) / float64(largeCount)
	if share < minUpperShare || share > maxUpperShare {
		t.Errorf("a share of %.3f of %d large values has a fraction in the upper half, want %v to %v",
			share, largeCount, minUpperShare, maxUpperShare)
	}
}

// checkTrees compares the host's results in the orders of trees with the formulas, if the number of
// inputs is a power of two. name describes the reduction in failures.
func checkTrees(
	t *testing.T, name string, op driver.ReduceOp, dt driver.DataType, inputs [][]byte,
) {
	t.Helper()
	for _, f := range formulas(len(inputs)) {
		if f == driver.RankOrder {
			continue
		}

		copies := make([][]byte, len(inputs)) // reduced in place
		for i := range inputs {
			copies[i] = bytes.Clone(inputs[i])
		}

		srcs := pointers(copies)
		tree := reduce.Tree{
			Op: op.Combine(), DataType: dt, IsRounded: f == driver.RoundedTree,
			IsAverage: op.IsAverage(), IsScaled: op.HasFactor(), Factor: formula.Factor(op),
		}
		const dst = 1 // index of the input that the result replaces
		count := len(inputs[0]) / dt.Size()
		tree.Reduce(srcs[dst:dst+1], srcs, count)
		if !bytes.Equal(copies[dst], formula.Reduce(f, op, dt, inputs)) {
			t.Errorf("%s: the host's %v result differs from the formula", name, f)
		}
	}
}

// pointers returns the address of each buffer.
func pointers(buffers [][]byte) (all []unsafe.Pointer) {
	for _, b := range buffers {
		all = append(all, unsafe.Pointer(&b[0]))
	}

	return all
}

// reduceWithKernels returns the result of the host's kernels for RankOrder.
func reduceWithKernels(op driver.ReduceOp, dt driver.DataType, inputs [][]byte) []byte {
	out := make([]byte, len(inputs[0]))
	srcs := pointers(inputs)
	dsts := []unsafe.Pointer{unsafe.Pointer(&out[0])}
	count := len(out) / dt.Size()
	switch {
	case op.IsAverage():
		reduce.Average(dt, dsts, srcs, count, reduce.Hint{})
	case op.HasFactor():
		reduce.ScaledSum(dt, dsts, srcs, count, formula.Factor(op), reduce.Hint{})
	default:
		reduce.Reduce(op.Combine(), dt, dsts, srcs, count, reduce.Hint{})
	}

	return out
}

// differingShare returns the fraction of the elements of a and b that differ.
func differingShare(a, b []byte, dt driver.DataType) float64 {
	size := dt.Size()
	differing := 0
	for i := 0; i < len(a); i += size {
		if !bytes.Equal(a[i:i+size], b[i:i+size]) {
			differing++
		}
	}

	count := len(a) / size
	return float64(differing) / float64(count)
}

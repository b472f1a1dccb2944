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
		driver.RoundedTree: big + 2,
	} {
		if got := formula.Reduce(f, driver.Sum, driver.Float32, inputs); !bytes.Equal(got, floats(want)) {
			t.Errorf("%v: got %x, want %x", f, got, floats(want))
		}
	}
}

func TestFloat16IsRoundedOnceOrAfterEachAddition(t *testing.T) {
	value := func(v float32) []byte {
		return binary.NativeEndian.AppendUint16(nil, reduce.Float16Bits(v))
	}
	// From 2048 on, float16 represents only even integers.
	inputs := [][]byte{value(2048), value(1), value(1), value(1)}
	for f, want := range map[driver.Formula]float32{
		driver.RankOrder:   2052, // 2051 is halfway between 2050 and 2052, and rounds to even
		driver.Tree:        2052,
		driver.RoundedTree: 2050, // 2049 is rounded to 2048, and 2048 + 2 is exact
	} {
		if got := formula.Reduce(f, driver.Sum, driver.Float16, inputs); !bytes.Equal(got, value(want)) {
			t.Errorf("%v: got %x, want %x", f, got, value(want))
		}
	}
}

func TestZerosNaNsAndAveragesFollowDocumentation(t *testing.T) {
	negativeZero, nan := math.Float32frombits(1<<31), math.Float32frombits(0xFFC01234)
	infinity := float32(math.Inf(1))
	for _, c := range []struct {
		op   driver.ReduceOp
		a, b float32
		want uint32 // bits
	}{
		{driver.Sum, negativeZero, negativeZero, 1 << 31},
		{driver.Sum, negativeZero, 0, 0},
		{driver.Min, 0, negativeZero, 1 << 31},
		{driver.Max, negativeZero, 0, 0},
		{driver.Max, nan, 1, 0x7FFFFFFF},
		{driver.Sum, infinity, -infinity, 0x7FFFFFFF},
		{driver.Prod, infinity, 0, 0x7FFFFFFF},
		{driver.Avg, math.Float32frombits(1), math.Float32frombits(2), 2}, // 1.5 rounds to even
	} {
		got := formula.Reduce(driver.RankOrder, c.op, driver.Float32, [][]byte{floats(c.a), floats(c.b)})
		if bits := binary.NativeEndian.Uint32(got); bits != c.want {
			t.Errorf("%v of %v and %v: got %#x, want %#x", c.op, c.a, c.b, bits, c.want)
		}
	}
	for f := range driver.RoundedTree + 1 {
		sums := formula.Reduce(f, driver.PremulSum, driver.Float32, [][]byte{floats(4)})
		if want := floats(4 * float32(formula.Factor(driver.PremulSum))); !bytes.Equal(sums, want) {
			t.Errorf("%v: the premul_sum of a single rank is %x, want %x", f, sums, want)
		}
	}
	single := [][]byte{floats(nan)}
	average := formula.Reduce(driver.RankOrder, driver.Avg, driver.Float32, single)
	if !bytes.Equal(average, single[0]) {
		t.Errorf("the average of a single rank is %x, want its input %x", average, single[0])
	}
	int8s := [][]byte{{100, 0xFF}, {100, 0xFE}} // 100 and -1, 100 and -2
	averages := formula.Reduce(driver.RankOrder, driver.Avg, driver.Int8, int8s)
	// 100 + 100 wraps to -56, and -56 / 2 is -28. -3 / 2 is -1.
	if want := []byte{0xE4, 0xFF}; !bytes.Equal(averages, want) {
		t.Errorf("averages of int8: got %x, want %x", averages, want)
	}
}

// TestAveragesDoNotOverflow averages inputs whose sums are not finite, and compares the averages
// with results computed by hand.
func TestAveragesDoNotOverflow(t *testing.T) {
	const huge, largest, smallest = 0x1.8p127, math.MaxFloat32, math.SmallestNonzeroFloat32
	inf := float32(math.Inf(1))
	nan := math.Float32frombits(0x7FFFFFFF)
	for _, c := range []struct {
		f    driver.Formula
		in   []float32 // by rank
		want float32
	}{
		{driver.RankOrder, []float32{3e38, 3e38}, 3e38},
		{driver.RankOrder, []float32{-huge, -huge, -huge}, -huge},
		{driver.RankOrder, []float32{huge, huge, -huge, -huge}, 0},
		{driver.Tree, []float32{huge, huge, -huge, -huge}, 0}, // without scaling, the sum is NaN
		{driver.RankOrder, []float32{largest, largest, largest, largest}, largest},
		{driver.RankOrder, []float32{huge, huge, -inf}, -inf},
		{driver.RankOrder, []float32{huge, huge, -inf, inf}, nan},
		{driver.RankOrder, []float32{huge, nan, huge}, nan},
		// Scaled by 1/8, 4*smallest becomes half of the smallest number, which is rounded to zero,
		// and 48*smallest becomes 6*smallest.
		{driver.RankOrder, []float32{huge, huge, -huge, -huge, 4 * smallest, 4 * smallest}, 0},
		{
			driver.RankOrder,
			[]float32{huge, huge, -huge, -huge, 48 * smallest, 48 * smallest},
			16 * smallest,
		},
	} {
		var inputs [][]byte
		for _, v := range c.in {
			inputs = append(inputs, floats(v))
		}
		got := formula.Reduce(c.f, driver.Avg, driver.Float32, inputs)
		if !bytes.Equal(got, floats(c.want)) {
			t.Errorf("%v average of %v: got %x, want %x", c.f, c.in, got, floats(c.want))
		}
	}
}

// TestAverageOfLargestNumbersIsFinite averages the largest finite elements. If their average is
// finite, averages of smaller elements are finite, too, because rounding is monotonic.
func TestAverageOfLargestNumbersIsFinite(t *testing.T) {
	for dt, largestBits := range map[driver.DataType]uint64{
		driver.Float64: 0x7FEFFFFFFFFFFFFF, driver.Float32: 0x7F7FFFFF, driver.Float16: 0x7BFF,
		driver.BFloat16: 0x7F7F,
	} {
		largest := formula.AppendBits(nil, dt, largestBits)
		infinity := formula.AppendBits(nil, dt, largestBits+1)
		for ranks := 2; ranks <= 1024; ranks++ {
			for _, f := range formulas(ranks) {
				got := formula.Reduce(f, driver.Avg, dt, slices.Repeat([][]byte{largest}, ranks))
				if bytes.Equal(got, infinity) {
					t.Fatalf("%v: the %v average on %d ranks is infinite", dt, f, ranks)
				}
			}
		}
	}
}

// formulas returns the formulas that groups of the given size can have.
func formulas(ranks int) []driver.Formula {
	if ranks&(ranks-1) != 0 {
		return []driver.Formula{driver.RankOrder}
	}
	return []driver.Formula{driver.RankOrder, driver.Tree, driver.RoundedTree}
}

// TestHostKernelsComputeFormula compares the results of the host's kernels with the formulas. It
// also checks that sums of the inputs depend on the order of additions.
func TestHostKernelsComputeFormula(t *testing.T) {
	const count = 5003
	for _, dt := range reduce.DataTypes() {
		for _, ranks := range []int{2, 3, 4, 8} {
			var inputs [][]byte
			for r := range ranks {
				inputs = append(inputs, formula.Input(dt, 7, r, ranks, count))
			}
			for _, op := range driver.ReductionsOf(dt) {
				name := fmt.Sprintf("%v %v of %d", op, dt, ranks)
				want := formula.Reduce(driver.RankOrder, op, dt, inputs)
				if got := reduceWithKernels(op, dt, inputs); !bytes.Equal(got, want) {
					t.Errorf("%s: the kernels' result differs from the formula", name)
				}
				checkTrees(t, name, op, dt, inputs)
				reversed := slices.Clone(inputs)
				slices.Reverse(reversed)
				share := differingShare(want, formula.Reduce(driver.RankOrder, op, dt, reversed), dt)
				if op == driver.Sum && dt.Float() && ranks > 2 && share < 0.1 {
					t.Errorf("%s: in reverse order, a share of %.3f of the elements differs, want 0.1",
						name, share)
				}
			}
		}
	}
}

func checkTrees(
	t *testing.T, name string, op driver.ReduceOp, dt driver.DataType, inputs [][]byte,
) {
	t.Helper()
	if len(inputs)&(len(inputs)-1) != 0 {
		return
	}
	for _, f := range []driver.Formula{driver.Tree, driver.RoundedTree} {
		copies := make([][]byte, len(inputs))
		for i := range inputs {
			copies[i] = bytes.Clone(inputs[i])
		}
		srcs := pointers(copies)
		tree := reduce.Tree{
			Op: op.Combine(), DataType: dt, IsRounded: f == driver.RoundedTree,
			IsAverage: op.IsAverage(), IsScaled: op.HasFactor(), Factor: formula.Factor(op),
		}
		const dst = 1 // the result replaces this input
		tree.Reduce(srcs[dst:dst+1], srcs, len(inputs[0])/dt.Size())
		if !bytes.Equal(copies[dst], formula.Reduce(f, op, dt, inputs)) {
			t.Errorf("%s: the host's %v result differs from the formula", name, f)
		}
	}
}

func pointers(buffers [][]byte) (all []unsafe.Pointer) {
	for _, b := range buffers {
		all = append(all, unsafe.Pointer(&b[0]))
	}
	return all
}

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
	differingBytes := 0
	for i := 0; i < len(a); i += size {
		if !bytes.Equal(a[i:i+size], b[i:i+size]) {
			differingBytes += size
		}
	}
	return float64(differingBytes) / float64(len(a))
}

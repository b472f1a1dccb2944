// Package formula is the reference for reductions in groups with a formula. Tests and "symmem
// verify --deterministic" compare results with it, so its code is simple rather than fast.
//
// Additions of floats round, so a sum depends on the order in which a reduction combines the ranks'
// elements. The formula is this order. For four ranks:
//
//	RankOrder     ((a + b) + c) + d
//	Tree          (a + b) + (c + d)
//	RoundedTree   like Tree; each sum of 16-bit floats is rounded to 16 bits
package formula

import (
	"bytes"
	"math"
	"math/bits"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// A reduction computes only these NaNs. Those of 16-bit types are the upper 16 bits of
// canonicalNaN.
var (
	canonicalNaN   = math.Float32frombits(0x7FFFFFFF)
	canonicalNaN64 = math.Float64frombits(0x7FFFFFFFFFFFFFFF)
)

// Reduce returns the reduction of the ranks' inputs. For example, the Sum of the Int8 inputs {1, 2}
// and {3, 4} is {4, 6}. If op has a factor, Reduce multiplies each input by Factor(op).
func Reduce(f driver.Formula, op driver.ReduceOp, t driver.DataType, inputs [][]byte) []byte {
	isCopy := len(inputs) == 1 && !op.HasFactor()
	if isCopy {
		return bytes.Clone(inputs[0])
	}

	switch t {
	case driver.Float64:
		return reduceElements(f, op, inputs, canonicalNaN64)
	case driver.Float32:
		return reduceElements(f, op, inputs, canonicalNaN)
	case driver.Float16:
		return reduce16Bits(f, op, inputs, reduce.Float16Value, reduce.Float16Bits)
	case driver.BFloat16:
		return reduce16Bits(f, op, inputs, reduce.BFloat16Value, reduce.BFloat16Bits)
	case driver.Int8:
		return reduceIntegers[int8](f, op, inputs)
	case driver.Int16:
		return reduceIntegers[int16](f, op, inputs)
	case driver.Int32:
		return reduceIntegers[int32](f, op, inputs)
	case driver.Int64:
		return reduceIntegers[int64](f, op, inputs)
	case driver.Uint8:
		return reduceIntegers[uint8](f, op, inputs)
	case driver.Uint16:
		return reduceIntegers[uint16](f, op, inputs)
	case driver.Uint32:
		return reduceIntegers[uint32](f, op, inputs)
	case driver.Uint64:
		return reduceIntegers[uint64](f, op, inputs)
	}

	panic("formula: no reduction of " + t.String())
}

func reduceIntegers[T reduce.Number](f driver.Formula, op driver.ReduceOp, inputs [][]byte) []byte {
	var unusedNaN T // integers are never NaN
	return reduceElements(f, op, inputs, unusedNaN)
}

func reduceElements[T reduce.Number](
	f driver.Formula, op driver.ReduceOp, inputs [][]byte, nan T,
) []byte {
	output := make([]byte, len(inputs[0]))
	outputElements := elementsOf[T](output)
	values := make([]T, len(inputs)) // one element of each rank
	elementsByRank := alignedElements[T](inputs)
	for i := range outputElements {
		for rank := range values {
			values[rank] = multiplyByFactor(op, elementsByRank[rank][i])
		}

		outputElements[i] = reduceElement(f, op, values, noRounding[T], nan)
	}

	return output
}

func noRounding[T any](v T) T { return v }

// reduce16Bits reduces 16-bit floats as float32 and rounds the result. In a RoundedTree, it also
// rounds each step.
func reduce16Bits(
	f driver.Formula, op driver.ReduceOp, inputs [][]byte,
	toFloat32 func(uint16) float32, to16Bits func(float32) uint16,
) []byte {
	round := noRounding[float32]
	if f == driver.RoundedTree {
		round = func(v float32) float32 { return toFloat32(to16Bits(v)) }
	}

	output := make([]byte, len(inputs[0]))
	outputElements := elementsOf[uint16](output)
	values := make([]float32, len(inputs))
	elementsByRank := alignedElements[uint16](inputs)
	for i := range outputElements {
		for rank := range values {
			value := toFloat32(elementsByRank[rank][i])
			values[rank] = round(multiplyByFactor(op, value))
		}

		outputElements[i] = to16Bits(reduceElement(f, op, values, round, canonicalNaN))
	}

	return output
}

func multiplyByFactor[T reduce.Number](op driver.ReduceOp, value T) T {
	if op.HasFactor() {
		return value * T(Factor(op))
	}

	return value
}

// reduceElement reduces one element of each rank, and replaces a NaN result with nan.
func reduceElement[T reduce.Number](
	f driver.Formula, op driver.ReduceOp, values []T, round func(T) T, nan T,
) T {
	reduced := combine(f, op, values, round)
	if op.IsAverage() {
		reduced = average(f, values, reduced, round)
	}

	if math.IsNaN(float64(reduced)) {
		return nan
	}

	return reduced
}

// combine combines one element of each rank. Only in trees, it rounds the result of each pair.
func combine[T reduce.Number](f driver.Formula, op driver.ReduceOp, values []T, round func(T) T) T {
	isTree := f == driver.Tree || f == driver.RoundedTree
	if isTree && len(values) > 1 {
		middle := len(values) / 2
		left := combine(f, op, values[:middle], round)
		right := combine(f, op, values[middle:], round)
		return round(Pair(op, left, right))
	}

	combined := values[0]
	for _, next := range values[1:] {
		combined = Pair(op, combined, next)
	}

	return combined
}

// Pair combines two elements. Floats follow IEEE 754-2019, and integers wrap around.
func Pair[T reduce.Number](op driver.ReduceOp, a, b T) T {
	return reduce.Combine(op.Combine(), a, b)
}

// average returns sum/len(values). An infinite or NaN sum may have overflowed. Then, average adds
// scaled values.
func average[T reduce.Number](f driver.Formula, values []T, sum T, round func(T) T) T {
	count := T(len(values))
	isFinite := !math.IsNaN(float64(sum)) && !math.IsInf(float64(sum), 0)
	if isFinite { // always true for integers
		return sum / count
	}

	log2OfCount := bits.Len(uint(len(values) - 1)) // rounded up
	scale := T(math.Ldexp(1, -log2OfCount))        // 1/2 for 2 ranks, 1/4 for 3 or 4
	scaledValues := make([]T, len(values))
	for i, v := range values {
		scaledValues[i] = v * scale
	}

	scaledSum := combine(f, driver.Sum, scaledValues, round)
	scaledCount := count * scale
	return scaledSum / scaledCount
}

// Factor returns the factor by which Reduce multiplies the inputs, or 0 if op has none.
func Factor(op driver.ReduceOp) float64 {
	if op.HasFactor() {
		return 0.75 // exact in every float type
	}

	return 0
}

// alignedElements copies the inputs, which may not be aligned for T.
func alignedElements[T any](inputs [][]byte) [][]T {
	var elementsByRank [][]T
	for _, input := range inputs {
		aligned := bytes.Clone(input)
		elementsByRank = append(elementsByRank, elementsOf[T](aligned))
	}

	return elementsByRank
}

// elementsOf reinterprets b, which must be aligned, without a copy.
func elementsOf[T any](b []byte) []T {
	var element T
	first := (*T)(unsafe.Pointer(unsafe.SliceData(b)))
	return unsafe.Slice(first, len(b)/int(unsafe.Sizeof(element)))
}

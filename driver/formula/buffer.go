package formula

import (
	"bytes"
	"math"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// Every NaN in a result has these bits or, in a 16-bit type, the rounded bits of canonicalNaN.
var (
	canonicalNaN   = math.Float32frombits(0x7FFFFFFF)
	canonicalNaN64 = math.Float64frombits(0x7FFFFFFFFFFFFFFF)
)

// Reduce returns the reduction of the ranks' inputs, the bytes of their elements in group order.
// For example, the Sum of the Int8 inputs {1, 2} and {3, 4} is {4, 6}.
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
	// Integers have no NaN. The zeros only determine the type.
	case driver.Int8:
		return reduceElements(f, op, inputs, int8(0))
	case driver.Uint8:
		return reduceElements(f, op, inputs, uint8(0))
	case driver.Int32:
		return reduceElements(f, op, inputs, int32(0))
	case driver.Int64:
		return reduceElements(f, op, inputs, int64(0))
	case driver.Int16:
		return reduceElements(f, op, inputs, int16(0))
	case driver.Uint16:
		return reduceElements(f, op, inputs, uint16(0))
	case driver.Uint32:
		return reduceElements(f, op, inputs, uint32(0))
	case driver.Uint64:
		return reduceElements(f, op, inputs, uint64(0))
	case driver.Float16:
		return reduce16Bits(f, op, inputs, reduce.Float16Value, reduce.Float16Bits)
	case driver.BFloat16:
		return reduce16Bits(f, op, inputs, reduce.BFloat16Value, reduce.BFloat16Bits)
	}

	panic("formula: no reduction of " + t.String())
}

func reduceElements[T reduce.Number](
	f driver.Formula, op driver.ReduceOp, inputs [][]byte, nan T,
) []byte {
	noRounding := func(v T) T { return v }
	output := make([]byte, len(inputs[0]))
	outputElements := elementsOf[T](output)
	values := make([]T, len(inputs)) // one element of each rank
	elementsByRank := elementsOfAll[T](inputs)
	for i := range outputElements {
		for r := range values {
			values[r] = multiplyByFactor(op, elementsByRank[r][i])
		}

		outputElements[i] = result(f, op, values, noRounding, nan)
	}

	return output
}

// reduce16Bits reduces 16-bit floats in float32 and rounds the result. A RoundedTree also rounds
// intermediate results.
func reduce16Bits(
	f driver.Formula, op driver.ReduceOp, inputs [][]byte,
	toFloat32 func(uint16) float32, to16Bits func(float32) uint16,
) []byte {
	round := func(v float32) float32 { return v }
	if f == driver.RoundedTree {
		round = func(v float32) float32 { return toFloat32(to16Bits(v)) }
	}

	output := make([]byte, len(inputs[0]))
	outputElements := elementsOf[uint16](output)
	values := make([]float32, len(inputs))
	elementsByRank := elementsOfAll[uint16](inputs)
	for i := range outputElements {
		for r := range values {
			value := toFloat32(elementsByRank[r][i])
			values[r] = round(multiplyByFactor(op, value))
		}

		outputElements[i] = to16Bits(result(f, op, values, round, canonicalNaN))
	}

	return output
}

// elementsOfAll copies the inputs, because they may not be aligned.
func elementsOfAll[T any](inputs [][]byte) [][]T {
	var elementsByRank [][]T
	for _, in := range inputs {
		aligned := bytes.Clone(in)
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

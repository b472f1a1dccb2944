package formula

import (
	"bytes"
	"math"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// These are the only NaNs that reductions compute. 16-bit types use canonicalNaN, rounded.
var (
	canonicalNaN   = math.Float32frombits(0x7FFFFFFF)
	canonicalNaN64 = math.Float64frombits(0x7FFFFFFFFFFFFFFF)
)

// Reduce returns the reduction of the ranks' inputs. For example, the Sum of the Int8 inputs {1, 2}
// and {3, 4} is {4, 6}. Elements are stored as bytes.
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
	case driver.Int8:
		return reduceIntegers[int8](f, op, inputs)
	case driver.Uint8:
		return reduceIntegers[uint8](f, op, inputs)
	case driver.Int32:
		return reduceIntegers[int32](f, op, inputs)
	case driver.Int64:
		return reduceIntegers[int64](f, op, inputs)
	case driver.Int16:
		return reduceIntegers[int16](f, op, inputs)
	case driver.Uint16:
		return reduceIntegers[uint16](f, op, inputs)
	case driver.Uint32:
		return reduceIntegers[uint32](f, op, inputs)
	case driver.Uint64:
		return reduceIntegers[uint64](f, op, inputs)
	case driver.Float16:
		return reduce16Bits(f, op, inputs, reduce.Float16Value, reduce.Float16Bits)
	case driver.BFloat16:
		return reduce16Bits(f, op, inputs, reduce.BFloat16Value, reduce.BFloat16Bits)
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

		outputElements[i] = result(f, op, values, noRounding[T], nan)
	}

	return output
}

func noRounding[T any](v T) T { return v }

// reduce16Bits reduces 16-bit floats in float32 and rounds the result. A RoundedTree also rounds
// intermediate results.
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

		outputElements[i] = to16Bits(result(f, op, values, round, canonicalNaN))
	}

	return output
}

// alignedElements copies the inputs, because the bytes of callers may not be aligned.
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

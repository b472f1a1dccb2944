package formula

import (
	"bytes"
	"math"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// canonicalNaN is the NaN in computed float32 results and, rounded, in those of 16-bit types.
var canonicalNaN = math.Float32frombits(0x7FFFFFFF)

// canonicalNaN64 is the NaN in computed float64 results.
var canonicalNaN64 = math.Float64frombits(0x7FFFFFFFFFFFFFFF)

// Reduce returns the reduction of the ranks' inputs. inputs holds the bytes of each rank's
// elements, in group order. For example, if op is Sum and t is Int8, the inputs {1, 2} and {3, 4}
// give {4, 6}.
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
	// The zero in the following calls only determines the type. Integers have no NaN.
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

// reduceElements reduces elements of type T. Each NaN in the result becomes nan.
func reduceElements[T reduce.Number](
	f driver.Formula, op driver.ReduceOp, inputs [][]byte, nan T,
) []byte {
	noRounding := func(v T) T { return v }  // results have type T anyway
	output := bytes.Clone(inputs[0])        // overwritten below
	outputElements := elementsOf[T](output) // the same memory
	values := make([]T, len(inputs))        // one element of each rank
	elementsByRank := elementsOfAll[T](inputs)
	for i := range outputElements {
		for r := range values {
			values[r] = multiplyByFactor(op, elementsByRank[r][i])
		}

		outputElements[i] = result(f, op, values, noRounding, nan)
	}

	return output
}

// reduce16Bits reduces elements of a 16-bit float type as float32 values, and rounds the result to
// 16 bits. If f is RoundedTree, it also rounds intermediate results.
func reduce16Bits(
	f driver.Formula, op driver.ReduceOp, inputs [][]byte,
	toFloat32 func(uint16) float32, to16Bits func(float32) uint16,
) []byte {
	round := func(v float32) float32 { return v }
	if f == driver.RoundedTree {
		round = func(v float32) float32 { return toFloat32(to16Bits(v)) }
	}

	output := bytes.Clone(inputs[0]) // overwritten below
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

// elementsOfAll returns copies of the elements of all ranks.
func elementsOfAll[T any](inputs [][]byte) [][]T {
	var elementsByRank [][]T
	for _, in := range inputs {
		aligned := bytes.Clone(in) // allocations are aligned, but in may not be
		elementsByRank = append(elementsByRank, elementsOf[T](aligned))
	}

	return elementsByRank
}

// elementsOf returns the elements whose bytes are b, without a copy. b must be aligned to an
// element.
func elementsOf[T any](b []byte) []T {
	var element T
	first := (*T)(unsafe.Pointer(unsafe.SliceData(b)))
	return unsafe.Slice(first, len(b)/int(unsafe.Sizeof(element)))
}

package formula

import (
	"bytes"
	"math"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// Reduce returns the result of reducing the ranks' inputs, in group order and native byte order.
// The result of a single rank is its input, multiplied by the factor if the reduction has one.
func Reduce(f driver.Formula, op driver.ReduceOp, t driver.DataType, inputs [][]byte) []byte {
	if len(inputs) == 1 && !op.Scales() {
		return bytes.Clone(inputs[0])
	}
	switch t {
	case driver.Float64:
		return reduceElements(f, op, inputs, math.Float64frombits(0x7FFFFFFFFFFFFFFF))
	case driver.Float32:
		return reduceElements(f, op, inputs, canonicalNaN)
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
		return reduceHalves(f, op, inputs, reduce.Float16Value, reduce.Float16Bits)
	case driver.BFloat16:
		return reduceHalves(f, op, inputs, reduce.BFloat16Value, reduce.BFloat16Bits)
	}
	panic("no formula for " + t.String())
}

// canonicalNaN is the NaN in all float32 results. Rounded, it is the NaN in results of 16-bit
// types.
var canonicalNaN = math.Float32frombits(0x7FFFFFFF)

// reduceElements replaces NaNs with nan.
func reduceElements[T reduce.Number](
	f driver.Formula, op driver.ReduceOp, inputs [][]byte, nan T,
) []byte {
	out, x := bytes.Clone(inputs[0]), make([]T, len(inputs))
	each := views[T](inputs)
	for i := range view[T](out) {
		for r := range x {
			x[r] = multiplyByFactor(op, each[r][i])
		}
		view[T](out)[i] = result(f, op, x, func(v T) T { return v }, nan)
	}
	return out
}

// reduceHalves reduces 16-bit floats in float32.
func reduceHalves(
	f driver.Formula, op driver.ReduceOp, inputs [][]byte,
	widen func(uint16) float32, narrow func(float32) uint16,
) []byte {
	round := func(v float32) float32 { return v }
	if f == driver.RoundedTree {
		round = func(v float32) float32 { return widen(narrow(v)) }
	}
	out, x := bytes.Clone(inputs[0]), make([]float32, len(inputs))
	each := views[uint16](inputs)
	for i := range view[uint16](out) {
		for r := range x {
			x[r] = round(multiplyByFactor(op, widen(each[r][i])))
		}
		view[uint16](out)[i] = narrow(result(f, op, x, round, canonicalNaN))
	}
	return out
}

func views[T any](inputs [][]byte) [][]T {
	var all [][]T
	for _, in := range inputs {
		all = append(all, view[T](bytes.Clone(in))) // cloned to align the elements
	}
	return all
}

// view returns bytes as a slice of elements. The bytes must be aligned to an element.
func view[T any](b []byte) []T {
	var one T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(one)))
}

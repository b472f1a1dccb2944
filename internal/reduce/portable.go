package reduce

import (
	"math"
	"unsafe"
)

// Portable code reduces up to batchLength elements in a buffer before it writes the destinations,
// which can also be sources.
const batchLength = 64

// reducePortable reduces the bytes [from, to), which must be multiples of the element size.
func reducePortable(j *job, from, to int) {
	switch j.dataType {
	case Float32:
		reduceFloats(j, from, to, canonicalNaN32)
	case Float64:
		reduceFloats(j, from, to, canonicalNaN64)
	case Float16, BFloat16:
		reduceHalves(j, from, to)
	case Int8:
		reduceIntegers[int8](j, from, to)
	case Int16:
		reduceIntegers[int16](j, from, to)
	case Int32:
		reduceIntegers[int32](j, from, to)
	case Int64:
		reduceIntegers[int64](j, from, to)
	case Uint8:
		reduceIntegers[uint8](j, from, to)
	case Uint16:
		reduceIntegers[uint16](j, from, to)
	case Uint32:
		reduceIntegers[uint32](j, from, to)
	case Uint64:
		reduceIntegers[uint64](j, from, to)
	default:
		panic("reduce: invalid type")
	}
}

// canonicalNaN32 and canonicalNaN64 replace all NaNs. 16-bit results are rounded afterwards.
var (
	canonicalNaN32 = math.Float32frombits(0x7FFFFFFF)
	canonicalNaN64 = math.Float64frombits(0x7FFFFFFFFFFFFFFF)
)

type integer interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64
}

// elements returns the memory from p+from to p+to as a slice.
func elements[T any](p unsafe.Pointer, from, to int) []T {
	if from == to { // p+from may be an invalid pointer.
		return nil
	}

	var zero T
	first := (*T)(unsafe.Add(p, from))
	count := (to - from) / int(unsafe.Sizeof(zero))
	return unsafe.Slice(first, count)
}

func reduceIntegers[T integer](j *job, from, to int) {
	var buffer [batchLength]T
	batchBytes := batchLength * int(unsafe.Sizeof(buffer[0]))
	for begin := from; begin < to; begin += batchBytes {
		end := min(begin+batchBytes, to)
		count := copy(buffer[:], elements[T](j.srcs[0], begin, end))
		acc := buffer[:count]
		for _, src := range j.srcs[1:] {
			combineElements(j.op, acc, elements[T](src, begin, end))
		}

		for _, dst := range j.dsts {
			copy(elements[T](dst, begin, end), acc)
		}
	}
}

// combineElements stores acc[i] op src[i] in acc[i].
func combineElements[T Number](op Op, acc, src []T) {
	src = src[:len(acc)] // eliminates bounds checks
	if op == Sum {       // fast path without the switch in Combine
		for i, x := range src {
			acc[i] += x
		}

		return
	}

	for i, x := range src {
		acc[i] = Combine(op, acc[i], x)
	}
}

// combineFloats is combineElements for floats. For opScaledSum, it multiplies src by the factor.
func combineFloats[T float32 | float64](j *job, acc, src []T) {
	if j.op != opScaledSum {
		combineElements(j.op, acc, src)
		return
	}

	factor := operandOf[T](j.operand)
	for i, x := range src[:len(acc)] {
		acc[i] += T(x * factor) //nolint:unconvert // T prevents a fused addition.
	}
}

// scaleElements multiplies acc by the factor if j is a scaled sum.
func scaleElements[T float32 | float64](j *job, acc []T) {
	if j.op != opScaledSum {
		return
	}

	factor := operandOf[T](j.operand)
	for i := range acc {
		acc[i] *= factor
	}
}

// finishElements turns sums into means if j is an average, and replaces NaNs. first is the index of
// acc[0] in the job.
func finishElements[T float32 | float64](j *job, acc []T, first int, canonicalNaN T) {
	isAverage := j.averageFlags != noFlags
	for i, result := range acc {
		if isAverage {
			result = meanOf(&j.terms, result, first+i)
		}

		if math.IsNaN(float64(result)) {
			result = canonicalNaN
		}

		acc[i] = result
	}
}

func reduceFloats[T float32 | float64](j *job, from, to int, canonicalNaN T) {
	var buffer [batchLength]T
	elementBytes := int(unsafe.Sizeof(buffer[0]))
	batchBytes := batchLength * elementBytes
	for begin := from; begin < to; begin += batchBytes {
		end := min(begin+batchBytes, to)
		count := copy(buffer[:], elements[T](j.srcs[0], begin, end))
		acc := buffer[:count]
		scaleElements(j, acc)
		for _, src := range j.srcs[1:] {
			combineFloats(j, acc, elements[T](src, begin, end))
		}

		finishElements(j, acc, begin/elementBytes, canonicalNaN)
		for _, dst := range j.dsts {
			copy(elements[T](dst, begin, end), acc)
		}
	}
}

// reduceHalves reduces 16-bit floats. It computes in float32, and rounds only the result.
func reduceHalves(j *job, from, to int) {
	const elementBytes = 2
	const batchBytes = elementBytes * batchLength
	var accBuffer, srcBuffer [batchLength]float32
	var roundedBuffer [batchLength]uint16
	for begin := from; begin < to; begin += batchBytes {
		end := min(begin+batchBytes, to)
		count := (end - begin) / elementBytes
		acc := accBuffer[:count]
		converted := srcBuffer[:count]
		rounded := roundedBuffer[:count]
		toFloat32(j.dataType, acc, elements[uint16](j.srcs[0], begin, end))
		scaleElements(j, acc)
		for _, src := range j.srcs[1:] {
			toFloat32(j.dataType, converted, elements[uint16](src, begin, end))
			combineFloats(j, acc, converted)
		}

		finishElements(j, acc, begin/elementBytes, canonicalNaN32)
		to16Bits(j.dataType, rounded, acc)
		for _, dst := range j.dsts {
			copy(elements[uint16](dst, begin, end), rounded)
		}
	}
}

// toFloat32 converts elements of type t, which is Float16 or BFloat16.
func toFloat32(t DataType, dst []float32, src []uint16) {
	for i, bits := range src {
		if t == Float16 {
			dst[i] = Float16Value(bits)
		} else {
			dst[i] = BFloat16Value(bits)
		}
	}
}

// to16Bits rounds to elements of type t, which is Float16 or BFloat16.
func to16Bits(t DataType, dst []uint16, src []float32) {
	for i, f := range src {
		if t == Float16 {
			dst[i] = Float16Bits(f)
		} else {
			dst[i] = BFloat16Bits(f)
		}
	}
}

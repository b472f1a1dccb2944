package reduce

import (
	"math"
	"unsafe"
)

// batchLength is the number of elements that the portable code reads from all sources before it
// writes them to the destinations, one of which may be a source.
const batchLength = 64

// canonicalNaN32 and canonicalNaN64 replace all NaNs in results. Rounding canonicalNaN32 to a
// 16-bit type gives the canonical NaN of that type.
var (
	canonicalNaN32 = math.Float32frombits(0x7FFFFFFF)
	canonicalNaN64 = math.Float64frombits(0x7FFFFFFFFFFFFFFF)
)

type integer interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64
}

// portable reduces the bytes [from, to) of the sources without vector instructions.
func portable(j *job, from, to int) {
	switch j.dataType {
	case Float32:
		reduceFloats(j, from, to, canonicalNaN32)
	case Float64:
		reduceFloats(j, from, to, canonicalNaN64)
	case Float16, BFloat16:
		reduceHalves(j, from, to)
	case Int8:
		reduceIntegers[int8](j, from, to)
	case Uint8:
		reduceIntegers[uint8](j, from, to)
	case Int32:
		reduceIntegers[int32](j, from, to)
	case Int64:
		reduceIntegers[int64](j, from, to)
	case Int16:
		reduceIntegers[int16](j, from, to)
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

// elements returns the elements in the bytes [from, to) of the memory at p.
func elements[T any](p unsafe.Pointer, from, to int) []T {
	var zero T
	if from == to {
		// p+from may be the end of a Go slice. The garbage collector reports pointers past the end.
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Add(p, from)), (to-from)/int(unsafe.Sizeof(zero)))
}

func reduceIntegers[T integer](j *job, from, to int) {
	var buffer [batchLength]T
	batchBytes := batchLength * int(unsafe.Sizeof(buffer[0]))
	for ; from < to; from += batchBytes {
		end := min(from+batchBytes, to)
		acc := buffer[:copy(buffer[:], elements[T](j.srcs[0], from, end))]
		for _, src := range j.srcs[1:] {
			combine(j.op, acc, elements[T](src, from, end))
		}
		for _, dst := range j.dsts {
			copy(elements[T](dst, from, end), acc)
		}
	}
}

// combine combines each element of acc, as the left operand, with that of src.
func combine[T Number](op Op, acc, src []T) {
	src = src[:len(acc)]
	if op == Sum { // The most frequent operation avoids the switch in Combine.
		for i, x := range src {
			acc[i] += x
		}
		return
	}
	for i, x := range src {
		acc[i] = Combine(op, acc[i], x)
	}
}

// combineFloats is like combine, but first multiplies src by the factor of a scaled sum.
func combineFloats[T float32 | float64](j *job, acc, src []T) {
	if j.op != opScaledSum {
		combine(j.op, acc, src)
		return
	}
	factor := operandOf[T](j.division.operand)
	for i, x := range src[:len(acc)] {
		acc[i] += T(x * factor) //nolint:unconvert // The conversion prevents a fused addition.
	}
}

// scaleElements multiplies acc by the factor of a scaled sum. It does nothing in other operations.
func scaleElements[T float32 | float64](j *job, acc []T) {
	if j.op != opScaledSum {
		return
	}
	factor := operandOf[T](j.division.operand)
	for i := range acc {
		acc[i] *= factor
	}
}

func reduceFloats[T float32 | float64](j *job, from, to int, canonicalNaN T) {
	var buffer [batchLength]T
	batchBytes := batchLength * int(unsafe.Sizeof(buffer[0]))
	for ; from < to; from += batchBytes {
		end := min(from+batchBytes, to)
		acc := buffer[:copy(buffer[:], elements[T](j.srcs[0], from, end))]
		scaleElements(j, acc)
		for _, src := range j.srcs[1:] {
			combineFloats(j, acc, elements[T](src, from, end))
		}
		finishElements(j, acc, from/int(unsafe.Sizeof(canonicalNaN)), canonicalNaN)
		for _, dst := range j.dsts {
			copy(elements[T](dst, from, end), acc)
		}
	}
}

// reduceHalves reduces 16-bit floats as float32, and rounds only the result.
func reduceHalves(j *job, from, to int) {
	var buffer, values32 [batchLength]float32
	var values16 [batchLength]uint16
	for ; from < to; from += 2 * batchLength {
		end := min(from+2*batchLength, to)
		acc, out := buffer[:(end-from)/2], values16[:(end-from)/2]
		toFloat32(j.dataType, acc, elements[uint16](j.srcs[0], from, end))
		scaleElements(j, acc)
		for _, src := range j.srcs[1:] {
			next := values32[:len(acc)]
			toFloat32(j.dataType, next, elements[uint16](src, from, end))
			combineFloats(j, acc, next)
		}
		finishElements(j, acc, from/2, canonicalNaN32)
		to16Bits(j.dataType, out, acc)
		for _, dst := range j.dsts {
			copy(elements[uint16](dst, from, end), out)
		}
	}
}

// toFloat32 converts src, whose elements have type t (Float16 or BFloat16).
func toFloat32(t DataType, dst []float32, src []uint16) {
	for i, bits := range src {
		if t == Float16 {
			dst[i] = Float16Value(bits)
		} else {
			dst[i] = BFloat16Value(bits)
		}
	}
}

// to16Bits rounds src to elements of type t (Float16 or BFloat16).
func to16Bits(t DataType, dst []uint16, src []float32) {
	for i, f := range src {
		if t == Float16 {
			dst[i] = Float16Bits(f)
		} else {
			dst[i] = BFloat16Bits(f)
		}
	}
}

// finishElements divides the sums of an average, and makes NaNs canonical. first is the index of
// acc[0] in the job's range.
func finishElements[T float32 | float64](j *job, acc []T, first int, canonicalNaN T) {
	for i, result := range acc {
		if j.division.mode != noDivision {
			result = meanOf(&j.terms, result, first+i)
		}
		if math.IsNaN(float64(result)) {
			result = canonicalNaN
		}
		acc[i] = result
	}
}

package reduce

import (
	"math"
	"unsafe"
)

// A batch of elements is read from all sources before it is written, so that a destination may also
// be a source.
const batch = 64

// canonical32 and canonical64 replace every NaN. Rounded to a 16-bit type, canonical32 is that
// type's canonical NaN.
var (
	canonical32 = math.Float32frombits(0x7FFFFFFF)
	canonical64 = math.Float64frombits(0x7FFFFFFFFFFFFFFF)
)

type integer interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64
}

// portable reduces the bytes in [from, to) with the same results as the kernels.
func portable(j *job, from, to int) {
	switch j.t {
	case Float32:
		foldFloats(j, from, to, canonical32)
	case Float64:
		foldFloats(j, from, to, canonical64)
	case Float16, BFloat16:
		foldHalves(j, from, to)
	case Int8:
		foldIntegers[int8](j, from, to)
	case Uint8:
		foldIntegers[uint8](j, from, to)
	case Int32:
		foldIntegers[int32](j, from, to)
	case Int64:
		foldIntegers[int64](j, from, to)
	case Int16:
		foldIntegers[int16](j, from, to)
	case Uint16:
		foldIntegers[uint16](j, from, to)
	case Uint32:
		foldIntegers[uint32](j, from, to)
	case Uint64:
		foldIntegers[uint64](j, from, to)
	default:
		panic("reduce: invalid type")
	}
}

func elements[T any](p unsafe.Pointer, from, to int) []T {
	var zero T
	if from == to {
		// The garbage collector would report a pointer past the end of a Go slice as corruption.
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Add(p, from)), (to-from)/int(unsafe.Sizeof(zero)))
}

func foldIntegers[T integer](j *job, from, to int) {
	var buffer [batch]T
	step := batch * int(unsafe.Sizeof(buffer[0]))
	for ; from < to; from += step {
		end := min(from+step, to)
		acc := buffer[:copy(buffer[:], elements[T](j.srcs[0], from, end))]
		for _, src := range j.srcs[1:] {
			combine(j.op, acc, elements[T](src, from, end))
		}
		for _, dst := range j.dsts {
			copy(elements[T](dst, from, end), acc)
		}
	}
}

// combine sets each acc[i] to acc[i] op src[i].
func combine[T Number](op Op, acc, src []T) {
	src = src[:len(acc)]
	if op == Sum { // avoids a switch for each element
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
	factor := fromBits[T](j.div.value)
	for i, x := range src[:len(acc)] {
		acc[i] += T(x * factor) //nolint:unconvert // The conversion prevents a fused addition.
	}
}

func scale[T float32 | float64](j *job, acc []T) {
	if j.op != opScaledSum {
		return
	}
	factor := fromBits[T](j.div.value)
	for i := range acc {
		acc[i] *= factor
	}
}

func foldFloats[T float32 | float64](j *job, from, to int, canonical T) {
	var buffer [batch]T
	step := batch * int(unsafe.Sizeof(buffer[0]))
	for ; from < to; from += step {
		end := min(from+step, to)
		acc := buffer[:copy(buffer[:], elements[T](j.srcs[0], from, end))]
		scale(j, acc)
		for _, src := range j.srcs[1:] {
			combineFloats(j, acc, elements[T](src, from, end))
		}
		finish(j, acc, from/int(unsafe.Sizeof(canonical)), canonical)
		for _, dst := range j.dsts {
			copy(elements[T](dst, from, end), acc)
		}
	}
}

func foldHalves(j *job, from, to int) {
	var buffer, wide [batch]float32
	var narrow [batch]uint16
	for ; from < to; from += 2 * batch {
		end := min(from+2*batch, to)
		acc, out := buffer[:(end-from)/2], narrow[:(end-from)/2]
		widen(j.t, acc, elements[uint16](j.srcs[0], from, end))
		scale(j, acc)
		for _, src := range j.srcs[1:] {
			next := wide[:len(acc)]
			widen(j.t, next, elements[uint16](src, from, end))
			combineFloats(j, acc, next)
		}
		finish(j, acc, from/2, canonical32)
		round(j.t, out, acc)
		for _, dst := range j.dsts {
			copy(elements[uint16](dst, from, end), out)
		}
	}
}

func widen(t DataType, wide []float32, narrow []uint16) {
	for i, h := range narrow {
		if t == Float16 {
			wide[i] = Float16Value(h)
		} else {
			wide[i] = BFloat16Value(h)
		}
	}
}

func round(t DataType, narrow []uint16, wide []float32) {
	for i, f := range wide {
		if t == Float16 {
			narrow[i] = Float16Bits(f)
		} else {
			narrow[i] = BFloat16Bits(f)
		}
	}
}

// finish divides the sums if necessary, and makes every NaN canonical. first is the index of acc[0]
// within the job.
func finish[T float32 | float64](j *job, acc []T, first int, canonical T) {
	for i, a := range acc {
		if j.div.mode != noDivision {
			a = mean(&j.terms, a, first+i)
		}
		if math.IsNaN(float64(a)) {
			a = canonical
		}
		acc[i] = a
	}
}

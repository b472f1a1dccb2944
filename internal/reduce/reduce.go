package reduce

import (
	"math"
	"math/bits"
	"unsafe"
)

const (
	// MaxSources bounds the sources of one call; a host has far fewer ranks.
	MaxSources = 64
	// MaxDestinations bounds the destinations of one call in the same way.
	MaxDestinations = 64

	// stride is how many bytes of a destination one call into the kernels covers. The runtime
	// cannot stop a goroutine inside them, so this bounds how late a garbage collection starts: a
	// stride of 64 cold sources takes milliseconds, one of two sources some tens of microseconds.
	stride = 256 << 10

	lineBytes = 64 // a cache line, the unit of a streamed store
)

// Hint says how the destinations will be used. It never changes a value.
type Hint struct {
	// Stream writes past the caches. It saves the reading of lines that are overwritten, which pays
	// for destinations that do not fit into the cache and that nobody reads soon. It takes effect
	// if all destinations are aligned to their elements and have the same address modulo 64.
	Stream bool
}

// Reduce stores src[0][i] op src[1][i] op ... into every destination for each i below count. The
// package comment states order, values and which overlaps are allowed.
//
// Preconditions (a violation panics before memory is touched): op and t are valid; 1 to 64
// sources and destinations; count is not negative.
func Reduce(op Op, t DataType, dsts, srcs []unsafe.Pointer, count int, hint Hint) {
	check(op, t, dsts, srcs, count)
	size := count * t.Size()
	if active != levelAVX512 || hint.Stream || len(srcs) == 1 || size > stride {
		reduceAny(op, t, dsts, srcs, size, hint)
		return
	}
	// One kernel does it all, and making a job takes longer than reducing some hundred bytes.
	reduceAVX512(kernel(op, t), unsafe.SliceData(dsts), len(dsts), unsafe.SliceData(srcs),
		len(srcs), 0, size, 0, 0)
}

// reduceAny is Reduce without a short cut. It stays out of line to keep its job out of the frame of
// Reduce.
//
//go:noinline
func reduceAny(op Op, t DataType, dsts, srcs []unsafe.Pointer, size int, hint Hint) {
	if len(srcs) == 1 {
		for _, dst := range dsts {
			Copy(dst, srcs[0], size, hint)
		}
		return
	}
	j := job{op: op, t: t, dsts: dsts, srcs: srcs}
	j.run(size, hint)
}

// Average stores the sum of the sources divided by divisor into every destination. Floats are
// divided by the divisor, rounded to their accumulator's type, with one more rounding; halves are
// rounded once, after the division. Integers are truncated towards zero after a sum that wraps.
//
// Preconditions are those of Reduce, and divisor is positive.
func Average(t DataType, dsts, srcs []unsafe.Pointer, count int, divisor int64, hint Hint) {
	check(Sum, t, dsts, srcs, count)
	if divisor <= 0 {
		panic("reduce: divisor is not positive")
	}
	if divisor == 1 && len(srcs) == 1 {
		Reduce(Sum, t, dsts, srcs, count, hint)
		return
	}
	j, size := job{op: Sum, t: t, dsts: dsts, srcs: srcs}, count*t.Size()
	switch t {
	case Float32, Float64, Float16, BFloat16:
		j.final = newFinal(t, divisor)
		j.run(size, hint)
	case Int8:
		averageIntegers[int8](j, size, divisor)
	case Uint8:
		averageIntegers[uint8](j, size, divisor)
	case Int32:
		averageIntegers[int32](j, size, divisor)
	case Int64:
		averageIntegers[int64](j, size, divisor)
	}
}

// Scale divides count elements at dst by divisor in place, as Average does with one source.
func Scale(t DataType, dst unsafe.Pointer, count int, divisor int64) {
	one := [1]unsafe.Pointer{dst}
	Average(t, one[:], one[:], count, divisor, Hint{})
}

func check(op Op, t DataType, dsts, srcs []unsafe.Pointer, count int) {
	if !op.Valid() || !t.Valid() {
		panic("reduce: invalid operation or data type")
	}
	if uint(len(srcs)-1) >= MaxSources || uint(len(dsts)-1) >= MaxDestinations {
		panic("reduce: number of sources or destinations out of range")
	}
	if count < 0 {
		panic("reduce: negative count")
	}
}

// A job is what stays the same while a call walks through its range.
type job struct {
	op    Op
	t     DataType
	dsts  []unsafe.Pointer
	srcs  []unsafe.Pointer
	final final
}

// A final is the step between the accumulator and the rounding: nothing, or a multiplication or
// division by a number.
type final struct {
	mode  finalMode
	value uint64 // bits of a float64 for Float64, else of a float32
}

type finalMode uint8

// The values are those that the kernels test for.
const (
	finalNone     finalMode = 0
	finalMultiply finalMode = 2
	finalDivide   finalMode = 4
)

// newFinal chooses the step for an average. The reciprocal of a power of two is exact, so that
// multiplying by it rounds like the division and takes a fraction of its time.
func newFinal(t DataType, divisor int64) final {
	f, mode := float64(divisor), finalDivide
	if t != Float64 {
		f = float64(float32(divisor))
	}
	if bits.OnesCount64(uint64(divisor)) == 1 {
		f, mode = 1/f, finalMultiply
	}
	if t == Float64 {
		return final{mode: mode, value: math.Float64bits(f)}
	}
	return final{mode: mode, value: uint64(math.Float32bits(float32(f)))}
}

// averageIntegers sums stretches that stay in the nearest cache and divides them there.
func averageIntegers[T integer](j job, size int, divisor int64) {
	const stretch = 4 << 10
	dsts := j.dsts
	j.dsts = dsts[:1]
	for from := 0; from < size; from += stretch {
		to := min(from+stretch, size)
		j.walk(from, to, false)
		first := unsafe.Add(dsts[0], from)
		divideIntegers[T](first, to-from, divisor)
		for _, dst := range dsts[1:] {
			Copy(unsafe.Add(dst, from), first, to-from, Hint{})
		}
	}
}

// run reduces size bytes. With streaming it takes the bytes before the destinations' first line
// boundary, and those after the last, through the caches.
func (j *job) run(size int, hint Hint) {
	if !hint.Stream || !j.canStream(size) {
		j.walk(0, size, false)
		return
	}
	head := int(-uintptr(j.dsts[0]) % lineBytes)
	body := (size - head) &^ (lineBytes - 1)
	j.walk(0, head, false)
	j.walk(head, head+body, true)
	fence()
	j.walk(head+body, size, false)
}

// canStream reports whether every destination reaches a line boundary at the same element.
func (j *job) canStream(size int) bool {
	first := uintptr(j.dsts[0])
	for _, dst := range j.dsts[1:] {
		if (uintptr(dst)-first)%lineBytes != 0 {
			return false
		}
	}
	return size >= 2*lineBytes && first%uintptr(j.t.Size()) == 0
}

// walk reduces the bytes from..to in strides.
func (j *job) walk(from, to int, stream bool) {
	for ; to-from > stride; from += stride {
		j.stretch(from, from+stride, stream)
	}
	if from < to {
		j.stretch(from, to, stream)
	}
}

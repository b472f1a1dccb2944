package reduce

import "unsafe"

const (
	// MaxSources limits the sources of one call. Machines have far fewer ranks.
	MaxSources = 64
	// MaxDestinations limits the destinations of one call.
	MaxDestinations = 64

	// stride is the number of bytes of a destination that one kernel call covers. The runtime
	// cannot preempt a kernel, so a long call would delay a garbage collection. A stride takes tens
	// of microseconds for two sources, and milliseconds for 64 sources that are not in the cache.
	stride = 256 << 10

	lineBytes = 64 // size of a cache line, the unit of streamed stores
)

// Hint describes the use of the destinations. It never changes a result.
type Hint struct {
	// Stream requests stores that bypass the caches. Such stores are faster for destinations that
	// do not fit into the cache and are not read soon. Stream has an effect only if the
	// destinations have at least 128 bytes, are aligned to their elements, and have the same
	// address modulo 64. Averages of integers ignore Stream.
	Stream bool
}

// Reduce stores src[0][i] op src[1][i] op ... in every destination, for each i below count. The
// package comment specifies the order, the values and the permitted overlaps.
//
// It panics, before it accesses memory, unless op and t are valid, there are 1 to 64 sources and 1
// to 64 destinations, and count is not negative.
func Reduce(op Op, t DataType, dsts, srcs []unsafe.Pointer, count int, hint Hint) {
	check(op, t, dsts, srcs, count)
	size := count * t.Size()
	if active != levelAVX512 || hint.Stream || len(srcs) == 1 || size > stride {
		reduceAny(op, t, dsts, srcs, size, hint)
		return
	}
	// Creating a job takes longer than reducing a few hundred bytes.
	reduceAVX512(kernel(op, t), unsafe.SliceData(dsts), len(dsts), unsafe.SliceData(srcs),
		len(srcs), 0, size, 0, nil)
}

// reduceAny is not inlined, so that the stack frame of Reduce does not contain a job.
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

// ScaledSum multiplies every source by a factor and stores the sum of the products in every
// destination. t must be a floating-point type. Other preconditions are those of Reduce.
func ScaledSum(
	t DataType, dsts, srcs []unsafe.Pointer, count int, factor float64, hint Hint,
) {
	check(Sum, t, dsts, srcs, count)
	if !t.Float() {
		panic("reduce: a scaled sum of integers")
	}
	j := job{op: opScaledSum, t: t, dsts: dsts, srcs: srcs}
	j.div.value = operandBits(t, factor)
	j.run(count*t.Size(), hint)
}

// Average stores the sum of the sources divided by their number in every destination. The
// preconditions are those of Reduce.
func Average(t DataType, dsts, srcs []unsafe.Pointer, count int, hint Hint) {
	check(Sum, t, dsts, srcs, count)
	if len(srcs) == 1 {
		Reduce(Sum, t, dsts, srcs, count, hint)
		return
	}
	j := job{op: Sum, t: t, dsts: dsts, srcs: srcs, terms: terms{t: t, srcs: srcs}}
	j.average(count*t.Size(), hint)
}

func (j *job) average(size int, hint Hint) {
	switch j.t {
	case Float32, Float64, Float16, BFloat16:
		j.div = newDivision(j.t, &j.terms)
		j.run(size, hint)
	case Int8:
		averageIntegers[int8](*j, size)
	case Uint8:
		averageIntegers[uint8](*j, size)
	case Int32:
		averageIntegers[int32](*j, size)
	case Int64:
		averageIntegers[int64](*j, size)
	case Int16:
		averageIntegers[int16](*j, size)
	case Uint16:
		averageIntegers[uint16](*j, size)
	case Uint32:
		averageIntegers[uint32](*j, size)
	case Uint64:
		averageIntegers[uint64](*j, size)
	}
}

func check(op Op, t DataType, dsts, srcs []unsafe.Pointer, count int) {
	if !op.Accepts(t) {
		panic("reduce: invalid operation or data type")
	}
	if uint(len(srcs)-1) >= MaxSources || uint(len(dsts)-1) >= MaxDestinations {
		panic("reduce: number of sources or destinations out of range")
	}
	if count < 0 {
		panic("reduce: negative count")
	}
}

type job struct {
	op    Op
	t     DataType
	dsts  []unsafe.Pointer
	srcs  []unsafe.Pointer
	div   division
	terms terms // of an average
}

// run reduces size bytes. It does not stream the bytes before the first and after the last line
// boundary of each destination.
func (j *job) run(size int, hint Hint) {
	if !hint.Stream || !j.canStream(size) {
		j.reduceStrides(0, size, false)
		return
	}
	head := int(-uintptr(j.dsts[0]) % lineBytes)
	body := (size - head) &^ (lineBytes - 1)
	j.reduceStrides(0, head, false)
	j.reduceStrides(head, head+body, true)
	fence()
	j.reduceStrides(head+body, size, false)
}

// canStream reports whether all destinations reach a line boundary at the same element and contain
// at least one whole line.
func (j *job) canStream(size int) bool {
	first := uintptr(j.dsts[0])
	for _, dst := range j.dsts[1:] {
		if (uintptr(dst)-first)%lineBytes != 0 {
			return false
		}
	}
	return size >= 2*lineBytes && first%uintptr(j.t.Size()) == 0
}

func (j *job) reduceStrides(from, to int, stream bool) {
	for ; to-from > stride; from += stride {
		j.reduceRange(from, from+stride, stream)
	}
	if from < to {
		j.reduceRange(from, to, stream)
	}
}

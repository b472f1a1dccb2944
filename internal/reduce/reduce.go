package reduce

import "unsafe"

// A reduction combines sources element by element, and stores the result in every destination. It
// runs in strides, between which the Go runtime can preempt the goroutine. A kernel, which is
// assembly with vector instructions, or portable Go code reduces each stride.

// The limits of one call.
const (
	MaxSources      = 64
	MaxDestinations = 64
)

// strideBytes is the maximum size of a stride. A kernel takes tens of microseconds for two sources,
// and milliseconds for 64 sources outside the cache.
const strideBytes = 256 << 10

const lineBytes = 64 // size of a cache line

// Hint describes the use of the destinations. It never changes a result.
type Hint struct {
	// Stream requests stores that bypass the caches, for destinations that do not fit into the cache
	// and are not read soon. It has an effect only if the destinations have at least 128 bytes, are
	// aligned to the element size, and have the same address modulo 64.
	Stream bool
}

// Reduce stores src[0][i] op src[1][i] op ... in every destination, for each i below count.
//
// It panics, before it accesses memory, if op or t is invalid, count is negative, or there are not
// 1 to 64 sources and destinations.
func Reduce(op Op, t DataType, dsts, srcs []unsafe.Pointer, count int, hint Hint) {
	checkArguments(op, t, dsts, srcs, count)
	size := count * t.Size()
	fitsOneKernel := len(srcs) > 1 && size <= strideBytes
	isFast := activeLevel == levelAVX512 && fitsOneKernel && !hint.Stream
	if !isFast {
		reduceAny(op, t, dsts, srcs, size, hint)
		return
	}

	// Creating a job would take longer than reducing a few hundred bytes.
	const from, noFlags = 0, 0
	reduceAVX512(kernelIndex(op, t), unsafe.SliceData(dsts), len(dsts), unsafe.SliceData(srcs),
		len(srcs), from, size, noFlags, nil)
}

func checkArguments(op Op, t DataType, dsts, srcs []unsafe.Pointer, count int) {
	if !op.Accepts(t) {
		panic("reduce: invalid operation or data type")
	}

	if len(srcs) < 1 || len(srcs) > MaxSources || len(dsts) < 1 || len(dsts) > MaxDestinations {
		panic("reduce: number of sources or destinations out of range")
	}

	if count < 0 {
		panic("reduce: negative count")
	}
}

// reduceAny is Reduce without the fast path. size is in bytes. Inlining would enlarge the stack
// frame of Reduce.
//
//go:noinline
func reduceAny(op Op, t DataType, dsts, srcs []unsafe.Pointer, size int, hint Hint) {
	if len(srcs) == 1 { // there is nothing to combine
		for _, dst := range dsts {
			Copy(dst, srcs[0], size, hint)
		}

		return
	}

	j := job{op: op, dataType: t, dsts: dsts, srcs: srcs}
	j.run(size, hint)
}

// ScaledSum multiplies every source by a factor and stores the sum of the products in every
// destination. t must be a floating-point type.
func ScaledSum(
	t DataType, dsts, srcs []unsafe.Pointer, count int, factor float64, hint Hint,
) {
	checkArguments(Sum, t, dsts, srcs, count)
	if !t.Float() {
		panic("reduce: a scaled sum requires a floating-point type")
	}

	j := job{op: opScaledSum, dataType: t, dsts: dsts, srcs: srcs}
	j.division.operand = operandBits(t, factor)
	j.run(count*t.Size(), hint)
}

// Average stores the mean of the sources in every destination.
func Average(t DataType, dsts, srcs []unsafe.Pointer, count int, hint Hint) {
	checkArguments(Sum, t, dsts, srcs, count)
	if len(srcs) == 1 { // the mean is the source
		Reduce(Sum, t, dsts, srcs, count, hint)
		return
	}

	j := job{op: Sum, dataType: t, dsts: dsts, srcs: srcs, terms: averageTerms{t: t, srcs: srcs}}
	j.average(count*t.Size(), hint)
}

// job is a reduction that runs in strides. Positions are byte offsets from its pointers.
type job struct {
	op       Op
	dataType DataType
	dsts     []unsafe.Pointer
	srcs     []unsafe.Pointer
	division division     // of an average; operand is also the factor of opScaledSum
	terms    averageTerms // of an average
}

// average divides each sum by the number of terms. If a sum of floats overflows, it computes the
// mean from the terms.
func (j *job) average(size int, hint Hint) {
	switch j.dataType {
	case Float32, Float64, Float16, BFloat16:
		j.division = newDivision(j.dataType, &j.terms)
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

// Values of parameters named stream.
const (
	cached   = false
	streamed = true
)

// run runs the job for the first size bytes.
//
// With Hint.Stream, stores to whole cache lines bypass the caches. If the first whole line begins
// at byte 16 and size is 1000, these are the bytes [16, 976).
func (j *job) run(size int, hint Hint) {
	if !hint.Stream || !j.canStream(size) {
		j.reduceStrides(0, size, cached)
		return
	}

	streamBegin := int(-uintptr(j.dsts[0]) % lineBytes) // offset of the first whole line
	streamBytes := (size - streamBegin) &^ (lineBytes - 1)
	streamEnd := streamBegin + streamBytes
	j.reduceStrides(0, streamBegin, cached)
	j.reduceStrides(streamBegin, streamEnd, streamed)
	fence() // other processors must see these stores before later ones
	j.reduceStrides(streamEnd, size, cached)
}

// canStream reports whether all destinations contain a whole cache line, and their addresses modulo
// lineBytes are equal and aligned to elements.
func (j *job) canStream(size int) bool {
	first := uintptr(j.dsts[0])
	for _, dst := range j.dsts[1:] {
		isSameInLine := (uintptr(dst)-first)%lineBytes == 0
		if !isSameInLine {
			return false
		}
	}

	isAligned := first%uintptr(j.dataType.Size()) == 0
	return size >= 2*lineBytes && isAligned
}

// reduceStrides reduces the bytes [from, to). If stream is set, from and to must be boundaries of
// the destinations' cache lines.
func (j *job) reduceStrides(from, to int, stream bool) {
	for begin := from; begin < to; begin += strideBytes {
		end := min(begin+strideBytes, to)
		j.reduceRange(begin, end, stream)
	}
}

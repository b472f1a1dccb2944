package reduce

import "unsafe"

// The limits of one call.
const (
	MaxSources      = 64
	MaxDestinations = 64
)

// strideBytes limits one call of a kernel, because the Go runtime cannot preempt assembly. The call
// takes tens of microseconds for two sources, and milliseconds for 64 sources outside the cache.
const strideBytes = 256 << 10

const lineBytes = 64 // size of a cache line

// Hint describes the use of the destinations. It never changes a result.
type Hint struct {
	// Stream requests stores that bypass the caches, for destinations that do not fit into the cache
	// and are not read soon. It is ignored unless each destination has at least 128 bytes, is aligned
	// to the element size, and has the same address modulo 64.
	Stream bool
}

// Reduce stores src[0][i] op src[1][i] op ... in every destination, for each i below count.
//
// It panics, before it accesses memory, if op or t is invalid, count is negative, or there are not
// 1 to 64 sources and destinations.
func Reduce(op Op, t DataType, dsts, srcs []unsafe.Pointer, count int, hint Hint) {
	checkArguments(op, t, dsts, srcs, count)
	size := count * t.Size()
	needsOneKernel := len(srcs) > 1 && size <= strideBytes && !hint.Stream
	if needsOneKernel && activeLevel == levelAVX512 {
		// For a few hundred bytes, creating a job would take longer than the kernel.
		const from = 0
		reduceAVX512(kernelIndex(op, t), unsafe.SliceData(dsts), len(dsts), unsafe.SliceData(srcs),
			len(srcs), from, size, uint64(noFlags), nil)
		return
	}

	reduceAny(op, t, dsts, srcs, size, hint)
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

// reduceAny is Reduce without the fast path. size is in bytes. Inlining it would enlarge the stack
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
	j.operand = operandBits(t, factor)
	j.run(count*t.Size(), hint)
}

// job is a reduction. Its methods identify ranges of elements by byte offsets in the sources.
type job struct {
	op           Op
	dataType     DataType
	dsts         []unsafe.Pointer
	srcs         []unsafe.Pointer
	operand      uint64       // from operandBits: factor of opScaledSum, or operand of averageFlags
	averageFlags kernelFlags  // noFlags unless the job is an average of floats
	terms        averageTerms // of an average
}

// run reduces the first size bytes. With Hint.Stream, stores to whole cache lines bypass the
// caches.
func (j *job) run(size int, hint Hint) {
	if !hint.Stream || !j.canStream(size) {
		j.reduceStrides(0, size, noFlags)
		return
	}

	streamBegin := int(-uintptr(j.dsts[0]) % lineBytes) // offset of the first whole line
	streamBytes := (size - streamBegin) &^ (lineBytes - 1)
	streamEnd := streamBegin + streamBytes
	j.reduceStrides(0, streamBegin, noFlags)
	j.reduceStrides(streamBegin, streamEnd, flagStream)
	fence() // orders the streamed stores before later stores
	j.reduceStrides(streamEnd, size, noFlags)
}

// canStream reports whether the destinations satisfy the conditions of Hint.Stream.
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

// reduceStrides reduces the bytes [from, to). flags is noFlags or flagStream. With flagStream, from
// and to must be boundaries of the destinations' cache lines.
func (j *job) reduceStrides(from, to int, flags kernelFlags) {
	for begin := from; begin < to; begin += strideBytes {
		end := min(begin+strideBytes, to)
		j.reduceRange(begin, end, flags)
	}
}

package reduce

import "unsafe"

// kernelFlags selects variants of a kernel. The assembly depends on the values.
type kernelFlags uint64

const (
	flagStream   kernelFlags = 1 << iota // stores bypass the caches
	flagMultiply                         // multiplies the result by kernelParams.operand
	flagDivide                           // divides the result by kernelParams.operand
	// flagStopAtInfinity stops the kernel before it stores a block with an infinite or NaN sum.
	flagStopAtInfinity
)

const noFlags kernelFlags = 0

// kernelParams are further arguments of kernels. The assembly depends on the layout.
type kernelParams struct {
	operand uint64 // job.operand
	// stopOffset is set to the offset of a block if the kernel stops there.
	stopOffset int
}

type instructionLevel uint8

const (
	levelPortable instructionLevel = iota
	levelAVX2                      // AVX2 and F16C
	levelAVX512                    // AVX-512 F, BW, VL and DQ, and BMI2
)

const (
	vectorBytes  = 32               // of AVX2
	stoppedBytes = 16 * vectorBytes // reduced by portable code after a kernel has stopped
)

// reduceRange reduces the bytes [from, to) with the code of activeLevel, the best for this
// processor. With flagStream, the range must consist of whole cache lines.
func (j *job) reduceRange(from, to int, flags kernelFlags) {
	if activeLevel == levelPortable {
		reducePortableExact(j, from, to)
		return
	}

	kernelEnd := to
	if activeLevel == levelAVX2 { // needs whole vectors
		wholeBytes := (to - from) &^ (vectorBytes - 1)
		kernelEnd = from + wholeBytes
	}

	for begin := from; begin < kernelEnd; {
		begin = j.runKernel(begin, kernelEnd, flags)
		hasStopped := begin < kernelEnd
		if hasStopped {
			end := min(begin+stoppedBytes, kernelEnd)
			reducePortableExact(j, begin, end)
			begin = end
		}
	}

	if kernelEnd < to {
		j.reduceTail(kernelEnd, to)
	}
}

// runKernel runs a kernel. It returns the offset at which the kernel has stopped, or to.
func (j *job) runKernel(from, to int, flags kernelFlags) (end int) {
	params := kernelParams{operand: j.operand, stopOffset: to}
	kernel := kernelIndex(j.op, j.dataType)
	allFlags := uint64(flags | j.averageFlags)
	dsts, srcs := unsafe.SliceData(j.dsts), unsafe.SliceData(j.srcs)
	if activeLevel == levelAVX512 {
		reduceAVX512(kernel, dsts, len(j.dsts), srcs, len(j.srcs), from, to, allFlags, &params)
	} else {
		reduceAVX2(kernel, dsts, len(j.dsts), srcs, len(j.srcs), from, to, allFlags, &params)
	}

	return params.stopOffset
}

// kernelIndex returns an index in the tables of the assembly.
func kernelIndex(op Op, t DataType) uint32 { return uint32(op)*dataTypes + uint32(t) }

type vector [vectorBytes]byte

// Up to smallSourceCount sources, reduceTail uses a smaller buffer, which is faster to clear.
const smallSourceCount = 8

// reduceTail reduces the bytes [from, to), less than a vector, with the AVX2 kernel.
func (j *job) reduceTail(from, to int) {
	if len(j.srcs) <= smallSourceCount {
		reducePadded[[smallSourceCount]vector, [smallSourceCount]unsafe.Pointer](j, from, to)
	} else {
		reducePadded[[MaxSources]vector, [MaxSources]unsafe.Pointer](j, from, to)
	}
}

// reducePadded copies the sources to vectors that are padded with zeros, and reduces the vectors.
func reducePadded[
	Buffer [smallSourceCount]vector | [MaxSources]vector,
	Sources [smallSourceCount]unsafe.Pointer | [MaxSources]unsafe.Pointer,
](j *job, from, to int) {
	var buffer Buffer
	var srcs Sources
	for i, src := range j.srcs {
		copy(buffer[i][:], elements[byte](src, from, to))
		srcs[i] = unsafe.Pointer(&buffer[i])
	}

	result := &buffer[0] // overwrites the first source
	kernelDst := unsafe.Pointer(result)
	const begin, end = 0, vectorBytes
	params := kernelParams{operand: j.operand, stopOffset: end}
	reduceAVX2(kernelIndex(j.op, j.dataType), &kernelDst, 1, &srcs[0], len(j.srcs), begin, end,
		uint64(j.averageFlags), &params)
	hasStopped := params.stopOffset < end
	if hasStopped {
		reducePortableExact(j, from, to)
		return
	}

	for _, dst := range j.dsts {
		copy(elements[byte](dst, from, to), result[:])
	}
}

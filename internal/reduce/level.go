package reduce

import "unsafe"

// kernelFlags selects variants of a kernel. The assembly depends on the values.
type kernelFlags uint64

const (
	flagStream   kernelFlags = 1 << iota // stores bypass the caches
	flagMultiply                         // multiplies the result by division.operand
	flagDivide                           // divides the result by division.operand
	// flagStopAtInfinity stops the kernel before it stores a block with an infinite or NaN sum.
	flagStopAtInfinity
	noFlags kernelFlags = 0
)

// division is an argument of kernels. The assembly depends on its layout.
type division struct {
	operand uint64 // from operandBits; also the factor of opScaledSum
	// stopOffset is the offset of the block at which the kernel has stopped. It is unchanged if the
	// kernel does not stop.
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
	stoppedBytes = 16 * vectorBytes // that portable code reduces after a kernel has stopped
)

// reduceRange reduces the bytes [from, to) with the code of activeLevel, the best for this
// processor. With flagStream, the range must consist of whole cache lines.
func (j *job) reduceRange(from, to int, flags kernelFlags) {
	if activeLevel == levelPortable {
		portableExact(j, from, to)
		return
	}

	wholeEnd := to
	if activeLevel == levelAVX2 { // needs whole vectors
		wholeBytes := (to - from) &^ (vectorBytes - 1)
		wholeEnd = from + wholeBytes
	}

	for begin := from; begin < wholeEnd; {
		begin = j.runKernel(begin, wholeEnd, flags)
		if begin < wholeEnd { // The kernel has stopped.
			end := min(begin+stoppedBytes, wholeEnd)
			portableExact(j, begin, end)
			begin = end
		}
	}

	if wholeEnd < to {
		j.reduceTail(wholeEnd, to)
	}
}

// runKernel runs a kernel, and returns the offset at which it has stopped or finished.
func (j *job) runKernel(from, to int, flags kernelFlags) (end int) {
	last := division{operand: j.operand, stopOffset: to}
	kernel, allFlags := kernelIndex(j.op, j.dataType), uint64(flags|j.averageFlags)
	dsts, srcs := unsafe.SliceData(j.dsts), unsafe.SliceData(j.srcs)
	if activeLevel == levelAVX512 {
		reduceAVX512(kernel, dsts, len(j.dsts), srcs, len(j.srcs), from, to, allFlags, &last)
	} else {
		reduceAVX2(kernel, dsts, len(j.dsts), srcs, len(j.srcs), from, to, allFlags, &last)
	}

	return last.stopOffset
}

// kernelIndex returns an index in the tables of the assembly.
func kernelIndex(op Op, t DataType) uint32 { return uint32(op)*dataTypes + uint32(t) }

type vector [vectorBytes]byte

// smallSourceCount is the largest number of sources for the smaller buffer of reduceTail. A small
// buffer is faster to clear.
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
	last := division{operand: j.operand, stopOffset: end}
	reduceAVX2(kernelIndex(j.op, j.dataType), &kernelDst, 1, &srcs[0], len(j.srcs), begin, end,
		uint64(j.averageFlags), &last)
	hasStopped := last.stopOffset < end
	if hasStopped {
		portableExact(j, from, to)
		return
	}

	for _, dst := range j.dsts {
		copy(elements[byte](dst, from, to), result[:])
	}
}

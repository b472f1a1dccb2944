package reduce

import "unsafe"

// reduceRange reduces a range of bytes of all sources. On a processor with AVX2, a kernel
// (assembly) processes vectors of 32 bytes. Suppose that the range has 1000 bytes:
//
//   - The kernel reduces 31 whole vectors, which are the first 992 bytes.
//   - The tail, the last 8 bytes, is copied to vectors that are padded with zeros. The kernel
//     reduces these, and the first 8 bytes of the result are copied to the destinations.
//
// With AVX-512, the kernel also reduces the tail. Without both, portable Go code reduces
// everything.
//
// In an average, a kernel stops at a block with an infinite or NaN sum, because only portable code
// can compute its mean. Portable code reduces up to 512 bytes, and then the kernel continues.

// instructionLevel identifies code that reduces elements by the instructions that it needs.
type instructionLevel uint8

const (
	levelPortable instructionLevel = iota
	levelAVX2                      // AVX2 and F16C
	levelAVX512                    // AVX-512 F, BW, VL and DQ, and BMI2
)

// reduceRange reduces the bytes in [from, to) with the code of activeLevel, which is the best for
// this processor. If stream is set, stores bypass the caches, and the range must consist of whole
// cache lines.
func (j *job) reduceRange(from, to int, stream bool) {
	if activeLevel == levelPortable {
		portableExact(j, from, to)
		return
	}

	vectorsEnd := to
	if activeLevel == levelAVX2 { // needs whole vectors
		vectorsBytes := (to - from) &^ (vectorBytes - 1)
		vectorsEnd = from + vectorsBytes
	}

	begin := from
	for begin < vectorsEnd {
		begin = j.runKernel(begin, vectorsEnd, stream)
		hasStopped := begin < vectorsEnd
		if hasStopped {
			end := min(begin+stoppedBytes, vectorsEnd)
			portableExact(j, begin, end)
			begin = end
		}
	}

	hasTail := vectorsEnd < to
	if hasTail {
		j.reduceTail(vectorsEnd, to)
	}
}

// stoppedBytes is how many bytes the portable code reduces after a kernel has stopped. It is a
// multiple of the element size and of vectorBytes.
const stoppedBytes = 512

const vectorBytes = 32 // of AVX2

// flagStream makes a kernel bypass the caches. The other flags of kernels, from 2 on, are a
// divisionMode.
const flagStream = 1

// runKernel runs a kernel for the bytes in [from, to). It returns the offset up to which the kernel
// has stored results: to, or the block at which it has stopped.
func (j *job) runKernel(from, to int, stream bool) (storedEnd int) {
	j.division.stopOffset = to // the kernel changes it if it stops
	flags := uint64(j.division.mode)
	if stream {
		flags |= flagStream
	}

	dsts, srcs := unsafe.SliceData(j.dsts), unsafe.SliceData(j.srcs)
	if activeLevel == levelAVX512 {
		reduceAVX512(kernelIndex(j.op, j.dataType), dsts, len(j.dsts), srcs, len(j.srcs), from, to,
			flags, &j.division)
	} else {
		reduceAVX2(kernelIndex(j.op, j.dataType), dsts, len(j.dsts), srcs, len(j.srcs), from, to,
			flags, &j.division)
	}

	return j.division.stopOffset
}

// kernelIndex returns the index of a kernel in the tables of the assembly.
func kernelIndex(op Op, t DataType) uint32 { return uint32(op)*dataTypes + uint32(t) }

type vector [vectorBytes]byte

// smallSourceCount is the number of sources up to which reduceTail uses a smaller buffer, which
// takes less time to clear.
const smallSourceCount = 8

// reduceTail reduces the bytes in [from, to), which are less than a vector, with the AVX2 kernel.
func (j *job) reduceTail(from, to int) {
	if len(j.srcs) <= smallSourceCount {
		reducePadded[[smallSourceCount]vector, [smallSourceCount]unsafe.Pointer](j, from, to)
	} else {
		reducePadded[[MaxSources]vector, [MaxSources]unsafe.Pointer](j, from, to)
	}
}

// reducePadded is reduceTail with a buffer and a list of sources of the given types.
func reducePadded[
	Buffer [smallSourceCount]vector | [MaxSources]vector,
	Sources [smallSourceCount]unsafe.Pointer | [MaxSources]unsafe.Pointer,
](j *job, from, to int) {
	var buffer Buffer // zero, so the vectors are padded
	var srcs Sources
	for i, src := range j.srcs {
		copy(buffer[i][:], elements[byte](src, from, to))
		srcs[i] = unsafe.Pointer(&buffer[i])
	}

	// The kernel overwrites the first source with the result.
	result := &buffer[0]
	kernelDst := unsafe.Pointer(result)
	const begin, end = 0, vectorBytes
	tailDivision := division{operand: j.division.operand, stopOffset: end}
	reduceAVX2(kernelIndex(j.op, j.dataType), &kernelDst, 1, &srcs[0], len(j.srcs), begin, end,
		uint64(j.division.mode), &tailDivision)
	hasStopped := tailDivision.stopOffset < end
	if hasStopped {
		portableExact(j, from, to)
		return
	}

	for _, dst := range j.dsts {
		copy(elements[byte](dst, from, to), result[:])
	}
}

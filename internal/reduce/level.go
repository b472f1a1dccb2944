package reduce

import "unsafe"

// With AVX2, a kernel (assembly) reduces whole vectors of 32 bytes. The tail of a range is copied
// to vectors that are padded with zeros, which the kernel also reduces. With AVX-512, the kernel
// handles tails. Without both, portable Go code reduces everything.
//
// In an average, a kernel stops at a block with an infinite or NaN sum. Portable code reduces
// stoppedBytes from there, and then the kernel continues.

type instructionLevel uint8

const (
	levelPortable instructionLevel = iota
	levelAVX2                      // AVX2 and F16C
	levelAVX512                    // AVX-512 F, BW, VL and DQ, and BMI2
)

// reduceRange reduces the bytes [from, to) with the code of activeLevel, the best for this
// processor. If stream is set, stores bypass the caches, and the range must consist of whole cache
// lines.
func (j *job) reduceRange(from, to int, stream bool) {
	if activeLevel == levelPortable {
		portableExact(j, from, to)
		return
	}

	wholeEnd := to
	if activeLevel == levelAVX2 { // needs whole vectors
		wholeBytes := (to - from) &^ (vectorBytes - 1)
		wholeEnd = from + wholeBytes
	}

	begin := from
	for begin < wholeEnd {
		begin = j.runKernel(begin, wholeEnd, stream)
		hasStopped := begin < wholeEnd
		if hasStopped {
			end := min(begin+stoppedBytes, wholeEnd)
			portableExact(j, begin, end)
			begin = end
		}
	}

	hasTail := wholeEnd < to
	if hasTail {
		j.reduceTail(wholeEnd, to)
	}
}

// stoppedBytes is a multiple of vectorBytes and of every element size.
const stoppedBytes = 512

const vectorBytes = 32 // of AVX2

// flagStream makes a kernel bypass the caches. The flags from 2 on are those of divisionMode.
const flagStream = 1

// runKernel runs a kernel, and returns the offset at which it has stopped or finished.
func (j *job) runKernel(from, to int, stream bool) (end int) {
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

// kernelIndex returns an index in the tables of the assembly.
func kernelIndex(op Op, t DataType) uint32 { return uint32(op)*dataTypes + uint32(t) }

type vector [vectorBytes]byte

// smallSourceCount is the largest number of sources for which reduceTail uses a smaller buffer,
// which is faster to clear.
const smallSourceCount = 8

// reduceTail reduces the bytes [from, to), less than a vector, with the AVX2 kernel.
func (j *job) reduceTail(from, to int) {
	if len(j.srcs) <= smallSourceCount {
		reducePadded[[smallSourceCount]vector, [smallSourceCount]unsafe.Pointer](j, from, to)
	} else {
		reducePadded[[MaxSources]vector, [MaxSources]unsafe.Pointer](j, from, to)
	}
}

// reducePadded is reduceTail with array types for the number of sources.
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

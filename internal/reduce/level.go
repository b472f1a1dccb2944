package reduce

import "unsafe"

// instructionLevel identifies the code that reduces elements, by the instructions that it needs.
type instructionLevel uint8

const (
	levelPortable instructionLevel = iota
	levelAVX2                      // AVX2 and F16C
	levelAVX512                    // AVX-512 F, BW, VL and DQ, and BMI2
)

// reduceRange reduces the bytes in [from, to) with the active level: by a kernel (assembly) or the
// portable code. If stream is set, stores bypass the caches, and the range must consist of whole
// cache lines.
func (j *job) reduceRange(from, to int, stream bool) {
	if activeLevel == levelPortable {
		portableExact(j, from, to)
		return
	}

	vectorEnd := to
	if activeLevel == levelAVX2 { // its kernels process only whole vectors
		wholeVectorsBytes := (to - from) &^ (vectorBytes - 1)
		vectorEnd = from + wholeVectorsBytes
	}

	begin := from
	for begin < vectorEnd {
		begin = j.runKernel(begin, vectorEnd, stream)
		hasStopped := begin < vectorEnd
		if hasStopped {
			end := min(begin+stoppedBlockBytes, vectorEnd)
			portableExact(j, begin, end)
			begin = end
		}
	}

	if vectorEnd < to {
		j.reduceTail(vectorEnd, to)
	}
}

// stoppedBlockBytes is how many bytes the portable code computes after a kernel has stopped. The
// kernel then continues.
const stoppedBlockBytes = 512

// runKernel runs the kernel of the active level for the bytes in [from, to). It returns the offset
// up to which the kernel has stored results. In an average, a kernel can stop before to, at an
// infinite or NaN sum, whose mean only the portable code can compute.
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

const vectorBytes = 32 // of AVX2

type vector [vectorBytes]byte

// smallSourceCount is the number of sources up to which reduceTail uses a smaller buffer. A smaller
// buffer takes less time to clear.
const smallSourceCount = 8

// reduceTail reduces the bytes in [from, to), which are less than a vector of AVX2. It runs the
// AVX2 kernel.
func (j *job) reduceTail(from, to int) {
	if len(j.srcs) <= smallSourceCount {
		reducePadded[[smallSourceCount]vector, [smallSourceCount]unsafe.Pointer](j, from, to)
	} else {
		reducePadded[[MaxSources]vector, [MaxSources]unsafe.Pointer](j, from, to)
	}
}

// reducePadded is reduceTail with buffers of the given types. It copies the sources to vectors
// that are padded with zeros, because AVX2 kernels process only whole vectors.
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

// kernelIndex returns the index of a kernel in the tables of the assembly.
func kernelIndex(op Op, t DataType) uint32 { return uint32(op)*dataTypes + uint32(t) }

// flagStream makes a kernel bypass the caches. The other flags of kernels, from 2 on, are a
// divisionMode.
const flagStream = 1

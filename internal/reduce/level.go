package reduce

import "unsafe"

// instructionLevel identifies the code that reduces elements, by the instructions that it needs.
type instructionLevel uint8

const (
	levelPortable instructionLevel = iota
	levelAVX2                      // AVX2 and F16C
	levelAVX512                    // AVX-512 F, BW, VL and DQ, and BMI2
)

// reduceRange reduces the bytes in [from, to). If stream is set, stores bypass the caches, and the
// range must consist of whole cache lines.
func (j *job) reduceRange(from, to int, stream bool) {
	if activeLevel == levelPortable {
		portableExact(j, from, to)
		return
	}
	vectorEnd := to
	if activeLevel == levelAVX2 {
		vectorEnd = from + (to-from)&^(vectorBytes-1)
	}
	for from < vectorEnd {
		j.division.stopOffset = vectorEnd
		j.runKernel(from, vectorEnd, stream)
		from = j.division.stopOffset // vectorEnd unless the kernel has stopped
		if from < vectorEnd {
			from = j.reduceStoppedBlock(vectorEnd)
		}
	}
	if vectorEnd < to {
		j.reduceTail(vectorEnd, to)
	}
}

// stoppedBlockBytes limits how many bytes the portable code computes after a kernel has stopped.
const stoppedBlockBytes = 512

// reduceStoppedBlock reduces the block at which a kernel has stopped, and returns the offset at
// which the kernel can continue.
func (j *job) reduceStoppedBlock(to int) int {
	end := min(j.division.stopOffset+stoppedBlockBytes, to)
	portableExact(j, j.division.stopOffset, end)
	return end
}

// runKernel runs the kernel of the active level for the bytes in [from, to).
func (j *job) runKernel(from, to int, stream bool) {
	flags := uint64(j.division.mode)
	if stream {
		flags |= flagStream
	}
	dsts, srcs := unsafe.SliceData(j.dsts), unsafe.SliceData(j.srcs)
	if activeLevel == levelAVX512 {
		reduceAVX512(kernelIndex(j.op, j.dataType), dsts, len(j.dsts), srcs, len(j.srcs), from, to,
			flags, &j.division)
		return
	}
	reduceAVX2(kernelIndex(j.op, j.dataType), dsts, len(j.dsts), srcs, len(j.srcs), from, to,
		flags, &j.division)
}

const vectorBytes = 32 // of AVX2

type vector [vectorBytes]byte

// smallSourceCount is the number of sources up to which reduceTail uses a smaller buffer, which
// takes less time to clear.
const smallSourceCount = 8

// reduceTail reduces the bytes in [from, to), which are less than a vector of AVX2.
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
	dst := srcs[0]
	tailDivision := division{operand: j.division.operand, stopOffset: vectorBytes}
	reduceAVX2(kernelIndex(j.op, j.dataType), &dst, 1, &srcs[0], len(j.srcs), 0, vectorBytes,
		uint64(j.division.mode), &tailDivision)
	if tailDivision.stopOffset < vectorBytes {
		portableExact(j, from, to)
		return
	}
	for _, dst := range j.dsts {
		copy(elements[byte](dst, from, to), buffer[0][:])
	}
}

// kernelIndex returns the index of a kernel in the tables of the assembly.
func kernelIndex(op Op, t DataType) uint32 { return uint32(op)*dataTypes + uint32(t) }

// flagStream makes a kernel bypass the caches. The other flags of kernels are a divisionMode.
const flagStream = 1

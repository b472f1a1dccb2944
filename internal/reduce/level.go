package reduce

import "unsafe"

// level identifies an instruction set.
type level uint8

const (
	levelPortable level = iota
	levelAVX2           // AVX2 and F16C
	levelAVX512         // AVX-512 F, BW, VL and DQ, and BMI2
)

// reduceRange reduces the bytes in [from, to). If stream is set, the range must consist of whole
// lines of every destination.
func (j *job) reduceRange(from, to int, stream bool) {
	if active == levelPortable {
		portableExact(j, from, to)
		return
	}
	whole := to
	if active == levelAVX2 {
		whole = from + (to-from)&^(vectorBytes-1)
	}
	for from < whole {
		j.div.stoppedAt = whole
		j.runKernel(from, whole, stream)
		if from = j.div.stoppedAt; from < whole {
			from = j.resume(whole)
		}
	}
	if whole < to {
		j.reduceTail(whole, to)
	}
}

// resumeBytes limits how many bytes the portable code computes after a kernel has stopped.
const resumeBytes = 512

// resume computes the block at which a kernel has stopped, and returns the offset at which the
// kernel can continue.
func (j *job) resume(to int) int {
	end := min(j.div.stoppedAt+resumeBytes, to)
	portableExact(j, j.div.stoppedAt, end)
	return end
}

func (j *job) runKernel(from, to int, stream bool) {
	flags := uint64(j.div.mode)
	if stream {
		flags |= flagStream
	}
	dsts, srcs := unsafe.SliceData(j.dsts), unsafe.SliceData(j.srcs)
	if active == levelAVX512 {
		reduceAVX512(kernel(j.op, j.t), dsts, len(j.dsts), srcs, len(j.srcs), from, to, flags, &j.div)
		return
	}
	reduceAVX2(kernel(j.op, j.t), dsts, len(j.dsts), srcs, len(j.srcs), from, to, flags, &j.div)
}

const vectorBytes = 32 // of AVX2

type vector [vectorBytes]byte

// For up to fewSources sources, reduceTail uses a smaller buffer, which takes less time to clear.
const fewSources = 8

// reduceTail reduces a range that is shorter than a vector, padded with zeros.
func (j *job) reduceTail(from, to int) {
	if len(j.srcs) <= fewSources {
		reducePadded[[fewSources]vector, [fewSources]unsafe.Pointer](j, from, to)
	} else {
		reducePadded[[MaxSources]vector, [MaxSources]unsafe.Pointer](j, from, to)
	}
}

func reducePadded[
	Buffer [fewSources]vector | [MaxSources]vector,
	Sources [fewSources]unsafe.Pointer | [MaxSources]unsafe.Pointer,
](j *job, from, to int) {
	var buffer Buffer
	var srcs Sources
	for i, src := range j.srcs {
		copy(buffer[i][:], elements[byte](src, from, to))
		srcs[i] = unsafe.Pointer(&buffer[i])
	}
	dst := srcs[0]
	last := division{value: j.div.value, stoppedAt: vectorBytes}
	reduceAVX2(kernel(j.op, j.t), &dst, 1, &srcs[0], len(j.srcs), 0, vectorBytes,
		uint64(j.div.mode), &last)
	if last.stoppedAt < vectorBytes {
		portableExact(j, from, to)
		return
	}
	for _, dst := range j.dsts {
		copy(elements[byte](dst, from, to), buffer[0][:])
	}
}

// kernel returns an index into the tables of kernels.
func kernel(op Op, t DataType) uint32 { return uint32(op)*dataTypes + uint32(t) }

// flagStream requests streamed stores. A kernel's other flags are a divisionMode.
const flagStream = 1

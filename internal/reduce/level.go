package reduce

import "unsafe"

// A level is an instruction set to reduce with. Higher levels need more of the processor.
type level uint8

const (
	levelPortable level = iota
	levelAVX2           // AVX2 and F16C
	levelAVX512         // AVX-512 F, BW, VL and DQ, and BMI2
)

// stretch reduces the bytes from..to at the active level. A streamed stretch consists of whole
// lines of every destination.
func (j *job) stretch(from, to int, stream bool) {
	if active == levelPortable {
		j.portably(from, to)
		return
	}
	whole := to
	if active == levelAVX2 {
		whole = from + (to-from)&^(vectorBytes-1)
	}
	for from < whole {
		j.final.stopped = whole
		j.vectors(from, whole, stream)
		if from = j.final.stopped; from < whole {
			from = j.resume(whole)
		}
	}
	if whole < to {
		j.tail(whole, to)
	}
}

// again is how many bytes of a destination are computed by portable code where a kernel stopped.
const again = 512

// resume computes the block at which a kernel stopped and returns where the kernel goes on.
func (j *job) resume(to int) int {
	end := min(j.final.stopped+again, to)
	j.portably(j.final.stopped, end)
	return end
}

// vectors calls a kernel on the bytes from..to.
func (j *job) vectors(from, to int, stream bool) {
	flags := uint64(j.final.mode)
	if stream {
		flags |= flagStream
	}
	dsts, srcs := unsafe.SliceData(j.dsts), unsafe.SliceData(j.srcs)
	if active == levelAVX512 {
		reduceAVX512(kernel(j.op, j.t), dsts, len(j.dsts), srcs, len(j.srcs), from, to, flags, &j.final)
		return
	}
	reduceAVX2(kernel(j.op, j.t), dsts, len(j.dsts), srcs, len(j.srcs), from, to, flags, &j.final)
}

const vectorBytes = 32 // of AVX2

// vector is what kernels for AVX2 work on.
type vector [vectorBytes]byte

// few is up to how many sources a tail takes the smaller room. Room is cleared first, which takes
// time.
const few = 8

// tail reduces fewer bytes than an AVX2 vector has, in vectors that are filled up with zeros.
func (j *job) tail(from, to int) {
	if len(j.srcs) <= few {
		filledUp[[few]vector, [few]unsafe.Pointer](j, from, to)
	} else {
		filledUp[[MaxSources]vector, [MaxSources]unsafe.Pointer](j, from, to)
	}
}

func filledUp[
	Room [few]vector | [MaxSources]vector, Sources [few]unsafe.Pointer | [MaxSources]unsafe.Pointer,
](j *job, from, to int) {
	var room Room
	var srcs Sources
	for i, src := range j.srcs {
		copy(room[i][:], elements[byte](src, from, to))
		srcs[i] = unsafe.Pointer(&room[i])
	}
	dst := srcs[0]
	last := final{value: j.final.value, stopped: vectorBytes}
	reduceAVX2(kernel(j.op, j.t), &dst, 1, &srcs[0], len(j.srcs), 0, vectorBytes,
		uint64(j.final.mode), &last)
	if last.stopped < vectorBytes {
		j.portably(from, to)
		return
	}
	for _, dst := range j.dsts {
		copy(elements[byte](dst, from, to), room[0][:])
	}
}

// kernel returns the place of an operation on a type in the tables of kernels.
func kernel(op Op, t DataType) uint32 { return uint32(op)*dataTypes + uint32(t) }

// flagStream asks a kernel for streamed stores; its other flags are those of finalMode.
const flagStream = 1

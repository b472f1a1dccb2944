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
	flags := uint64(j.final.mode)
	if stream {
		flags |= flagStream
	}
	switch active {
	case levelAVX512:
		reduceAVX512(kernel(j.op, j.t), unsafe.SliceData(j.dsts), len(j.dsts),
			unsafe.SliceData(j.srcs), len(j.srcs), from, to, flags, j.final.value)
	case levelAVX2:
		const vectorBytes = 32
		whole := from + (to-from)&^(vectorBytes-1)
		reduceAVX2(kernel(j.op, j.t), unsafe.SliceData(j.dsts), len(j.dsts),
			unsafe.SliceData(j.srcs), len(j.srcs), from, whole, flags, j.final.value)
		if whole < to {
			j.portable(whole, to)
		}
	case levelPortable:
		j.portable(from, to)
	}
}

// kernel returns the place of an operation on a type in the tables of kernels.
func kernel(op Op, t DataType) int { return int(op)*dataTypes + int(t) }

// flagStream asks a kernel for streamed stores; its other flags are those of finalMode.
const flagStream = 1

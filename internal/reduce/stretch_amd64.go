package reduce

import "unsafe"

//go:generate go run ./gen

// A level is an instruction set to reduce with. Higher levels need more of the processor.
type level uint8

const (
	levelPortable level = iota
	levelAVX2           // AVX2 and F16C
	levelAVX512         // AVX-512 F, BW, VL and DQ, and BMI2
)

// active is the best level of this processor. Tests lower it; nothing else writes it.
var active = detect()

// stretch reduces the bytes from..to at the active level. A streamed stretch consists of whole
// lines of every destination.
func (j *job) stretch(from, to int, stream bool) {
	flags := uint64(j.final.mode)
	if stream {
		flags |= 1
	}
	kernel := int(j.op)*int(dataTypes) + int(j.t)
	switch active {
	case levelAVX512:
		reduceAVX512(kernel, unsafe.SliceData(j.dsts), len(j.dsts), unsafe.SliceData(j.srcs),
			len(j.srcs), from, to, flags, j.final.value)
	case levelAVX2:
		const vectorBytes = 32
		whole := from + (to-from)&^(vectorBytes-1)
		reduceAVX2(kernel, unsafe.SliceData(j.dsts), len(j.dsts), unsafe.SliceData(j.srcs),
			len(j.srcs), from, whole, flags, j.final.value)
		if whole < to {
			j.portable(whole, to)
		}
	case levelPortable:
		j.portable(from, to)
	}
}

// The kernels reduce the bytes from..to. Flags are the final mode and 1 for streamed stores; value
// is the operand of the final step.
//
//go:noescape
func reduceAVX512(kernel int, dsts *unsafe.Pointer, ndst int, srcs *unsafe.Pointer, nsrc int,
	from, to int, flags, value uint64)

// reduceAVX2 needs to-from to be a multiple of 32.
//
//go:noescape
func reduceAVX2(kernel int, dsts *unsafe.Pointer, ndst int, srcs *unsafe.Pointer, nsrc int,
	from, to int, flags, value uint64)

// fence orders streamed stores before all later stores.
func fence()

// streamLines copies size bytes past the caches; dst is aligned to a line and size consists of
// whole lines.
//
//go:noescape
func streamLines(dst, src unsafe.Pointer, size int)

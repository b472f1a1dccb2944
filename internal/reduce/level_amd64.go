package reduce

import "unsafe"

//go:generate go run ./gen

// active is the best level of this processor. Tests lower it; nothing else writes it.
var active = detect()

// The kernels reduce the bytes from..to. Value is the operand of the final step.
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

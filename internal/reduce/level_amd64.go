package reduce

import (
	"runtime"
	"unsafe"
)

//go:generate go run ./gen

// Tests may change activeLevel.
var activeLevel = detectLevel()

// reduceAVX512 reduces the bytes in [from, to) with a kernel. params may be nil if the kernel needs
// no operand.
//
//go:noescape
func reduceAVX512(kernel uint32, dsts *unsafe.Pointer, ndst int, srcs *unsafe.Pointer, nsrc int,
	from, to int, flags uint64, params *kernelParams)

// In reduceAVX2, to-from must be a multiple of 32.
//
//go:noescape
func reduceAVX2(kernel uint32, dsts *unsafe.Pointer, ndst int, srcs *unsafe.Pointer, nsrc int,
	from, to int, flags uint64, params *kernelParams)

// fence orders streamed stores before all later stores.
func fence()

// streamLines copies size bytes, bypassing the caches. dst must be aligned to a line, and size a
// multiple of lineBytes.
//
//go:noescape
func streamLines(dst, src unsafe.Pointer, size int)

// reducePortableExact uses IEEE 754 arithmetic even if the thread flushes subnormal numbers to zero,
// as kernels do.
func reducePortableExact(j *job, from, to int) {
	if !j.dataType.Float() {
		reducePortable(j, from, to)
		return
	}

	const exact = 0x1F80 // the value after a processor reset
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer setControl(setControl(exact))
	reducePortable(j, from, to)
}

// setControl sets MXCSR, the register that controls rounding and flushing, and returns its previous
// value.
func setControl(value uint32) (previous uint32)

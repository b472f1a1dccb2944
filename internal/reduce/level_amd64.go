package reduce

import (
	"runtime"
	"unsafe"
)

//go:generate go run ./gen

// Tests may change activeLevel.
var activeLevel = detectLevel()

// detectLevel returns the best level that the processor supports and whose registers the system
// saves.
func detectLevel() instructionLevel {
	const (
		osSavesRegisters = 1 << 27 // leaf 1, ECX
		f16c             = 1 << 29
		avx2             = 1 << 5                               // leaf 7, EBX
		avx512           = 1<<8 | 1<<16 | 1<<17 | 1<<30 | 1<<31 // BMI2, F, DQ, BW, VL
		saved256         = 0x06                                 // XCR0
		saved512         = 0xE6
	)
	if leaves, _, _, _ := cpuid(0, 0); leaves < 7 {
		return levelPortable
	}

	_, _, one, _ := cpuid(1, 0)
	if one&(osSavesRegisters|f16c) != osSavesRegisters|f16c {
		return levelPortable
	}

	_, seven, _, _ := cpuid(7, 0)
	saved := xgetbv()
	switch {
	case saved&saved512 == saved512 && seven&(avx2|avx512) == avx2|avx512:
		return levelAVX512
	case saved&saved256 == saved256 && seven&avx2 != 0:
		return levelAVX2
	}

	return levelPortable
}

func cpuid(leaf, subleaf uint32) (eax, ebx, ecx, edx uint32)

// xgetbv returns the lower half of XCR0, a mask of the register states that the system saves.
func xgetbv() uint32

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

// reducePortableExact uses IEEE 754 arithmetic, as kernels do, even if the thread flushes subnormal
// numbers to zero.
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

//go:build !amd64

package reduce

import "unsafe"

// activeLevel is a constant, so that the compiler removes all calls to kernels.
const activeLevel = levelPortable

func reduceAVX512(
	uint32, *unsafe.Pointer, int, *unsafe.Pointer, int, int, int, uint64, *kernelParams,
) {
}

func reduceAVX2(
	uint32, *unsafe.Pointer, int, *unsafe.Pointer, int, int, int, uint64, *kernelParams,
) {
}

func reducePortableExact(j *job, from, to int) { reducePortable(j, from, to) }

func fence() {}

func streamLines(dst, src unsafe.Pointer, size int) {
	copy(elements[byte](dst, 0, size), elements[byte](src, 0, size))
}

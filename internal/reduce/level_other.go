//go:build !amd64

package reduce

import "unsafe"

// active is a constant here, so that the compiler drops every call to a kernel.
const active = levelPortable

func reduceAVX512(uint32, *unsafe.Pointer, int, *unsafe.Pointer, int, int, int, uint64, *final) {}

func reduceAVX2(uint32, *unsafe.Pointer, int, *unsafe.Pointer, int, int, int, uint64, *final) {}

// portably leaves the thread's arithmetic as it is.
func (j *job) portably(from, to int) { j.portable(from, to) }

// fence has nothing to order where nothing is streamed.
func fence() {}

// streamLines leaves the copy to the runtime.
func streamLines(dst, src unsafe.Pointer, size int) {
	copy(elements[byte](dst, 0, size), elements[byte](src, 0, size))
}

//go:build !amd64

package reduce

import "unsafe"

func (j *job) stretch(from, to int, _ bool) { j.portable(from, to) }

// fence has nothing to order where nothing is streamed.
func fence() {}

// streamLines leaves the copy to the runtime.
func streamLines(dst, src unsafe.Pointer, size int) {
	copy(elements[byte](dst, 0, size), elements[byte](src, 0, size))
}

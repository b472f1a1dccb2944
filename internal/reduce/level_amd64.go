package reduce

import (
	"runtime"
	"unsafe"
)

//go:generate go run ./gen

// active is the best level of this processor. Tests lower it; nothing else writes it.
var active = detect()

// The kernels reduce the bytes from..to. last is the final step, nil where flags have none.
//
//go:noescape
func reduceAVX512(kernel uint32, dsts *unsafe.Pointer, ndst int, srcs *unsafe.Pointer, nsrc int,
	from, to int, flags uint64, last *final)

// reduceAVX2 needs to-from to be a multiple of 32.
//
//go:noescape
func reduceAVX2(kernel uint32, dsts *unsafe.Pointer, ndst int, srcs *unsafe.Pointer, nsrc int,
	from, to int, flags uint64, last *final)

// fence orders streamed stores before all later stores.
func fence()

// streamLines copies size bytes past the caches; dst is aligned to a line and size consists of
// whole lines.
//
//go:noescape
func streamLines(dst, src unsafe.Pointer, size int)

// portably runs portable with the arithmetic of IEEE 754, and then restores that of the thread: one
// that is not Go's own may flush subnormal numbers to zero. The kernels do so by themselves.
func (j *job) portably(from, to int) {
	if !j.t.Float() {
		j.portable(from, to)
		return
	}
	const exact = 0x1F80 // what a processor starts with
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer setControl(setControl(exact))
	j.portable(from, to)
}

// setControl sets the register that says how floating point numbers are rounded and flushed, MXCSR,
// and returns what it was.
func setControl(to uint32) (was uint32)

package reduce

import (
	"runtime"
	"unsafe"
)

//go:generate go run ./gen

// active is the best level of this processor. Only tests change it.
var active = detect()

// reduceAVX512 reduces the bytes from..to with a kernel. last is the division, nil if flags request
// none.
//
//go:noescape
func reduceAVX512(kernel uint32, dsts *unsafe.Pointer, ndst int, srcs *unsafe.Pointer, nsrc int,
	from, to int, flags uint64, last *division)

// reduceAVX2 does the same. It requires to-from to be a multiple of 32.
//
//go:noescape
func reduceAVX2(kernel uint32, dsts *unsafe.Pointer, ndst int, srcs *unsafe.Pointer, nsrc int,
	from, to int, flags uint64, last *division)

// fence orders streamed stores before all later stores.
func fence()

// streamLines copies size bytes, bypassing the caches; dst is aligned to a line and size consists
// of whole lines.
//
//go:noescape
func streamLines(dst, src unsafe.Pointer, size int)

// portably runs portable with IEEE 754 arithmetic, and restores the settings of the thread, which
// may flush subnormal numbers to zero if it was not created by Go. The kernels do that internally.
func portably(j *job, from, to int) {
	if !j.t.Float() {
		portable(j, from, to)
		return
	}
	const exact = 0x1F80 // the processor's initial value
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer setControl(setControl(exact))
	portable(j, from, to)
}

// setControl sets MXCSR, the register that controls rounding and flushing of floating-point
// numbers, and returns its previous value.
func setControl(to uint32) (was uint32)

//go:build !race

package spin

import (
	"sync/atomic"
	"unsafe"
)

// Publish64 stores v in a variable of this process with one writer at a time and concurrent
// readers. A reader that loads v sees all earlier stores. Publish64 is inlined and needs no locked
// instruction.
func Publish64(at *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(at)) = v }

// Publish is Publish64 for a pointer.
func Publish[T any](at *atomic.Pointer[T], v *T) { *(**T)(unsafe.Pointer(at)) = v }

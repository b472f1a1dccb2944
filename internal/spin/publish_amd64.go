//go:build !race

package spin

import (
	"sync/atomic"
	"unsafe"
)

// Publish64 stores v in a variable that has a single writer at a time and concurrent readers in the
// same process. It is inlined and needs no locked instruction. A reader that loads v sees all
// earlier stores.
func Publish64(at *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(at)) = v }

// Publish stores a pointer in the same way as Publish64.
func Publish[T any](at *atomic.Pointer[T], v *T) { *(**T)(unsafe.Pointer(at)) = v }

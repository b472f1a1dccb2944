//go:build !race

package spin

import (
	"sync/atomic"
	"unsafe"
)

// Publish64 stores v where one goroutine at a time writes and others of the process load: inlined,
// and without a locked instruction. Who has loaded v sees all that was stored before.
func Publish64(at *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(at)) = v }

// Publish is Publish64 for a pointer.
func Publish[T any](at *atomic.Pointer[T], v *T) { *(**T)(unsafe.Pointer(at)) = v }

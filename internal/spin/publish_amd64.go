//go:build !race

package spin

import (
	"sync/atomic"
	"unsafe"
)

// Publish64 stores v for concurrent readers in this process. There must be only one writer at a
// time. A reader that loads v sees all earlier stores.
func Publish64(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }

// Publish is like Publish64, but for a pointer.
func Publish[T any](p *atomic.Pointer[T], v *T) { *(**T)(unsafe.Pointer(p)) = v }

//go:build !amd64 || race

package spin

import "sync/atomic"

// Publish64 stores v in a variable that has a single writer at a time and concurrent readers in the
// same process. A reader that loads v sees all earlier stores.
func Publish64(at *atomic.Uint64, v uint64) { at.Store(v) }

// Publish stores a pointer in the same way as Publish64.
func Publish[T any](at *atomic.Pointer[T], v *T) { at.Store(v) }

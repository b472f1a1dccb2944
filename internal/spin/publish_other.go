//go:build !amd64 || race

package spin

import "sync/atomic"

// Publish64 stores v where one goroutine at a time writes and others of the process load. Who has
// loaded v sees all that was stored before.
func Publish64(at *atomic.Uint64, v uint64) { at.Store(v) }

// Publish is Publish64 for a pointer.
func Publish[T any](at *atomic.Pointer[T], v *T) { at.Store(v) }

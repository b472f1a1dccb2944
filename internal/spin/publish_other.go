//go:build !amd64 || race

package spin

import "sync/atomic"

// Publish64 stores v in a variable of this process that has one writer at a time and concurrent
// readers. A reader that loads v sees all earlier stores.
func Publish64(p *atomic.Uint64, v uint64) { p.Store(v) }

// Publish is Publish64 for a pointer.
func Publish[T any](p *atomic.Pointer[T], v *T) { p.Store(v) }

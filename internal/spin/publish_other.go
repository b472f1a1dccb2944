//go:build !amd64 || race

package spin

import "sync/atomic"

// Publish64 stores v for concurrent readers in this process. There must be only one writer at a
// time. A reader that loads v sees all earlier stores.
func Publish64(p *atomic.Uint64, v uint64) { p.Store(v) }

// Publish is like Publish64, but for a pointer.
func Publish[T any](p *atomic.Pointer[T], v *T) { p.Store(v) }

//go:build !race

package spin

import (
	"sync/atomic"
	"unsafe"
)

// StoreRelease64 stores v in *p with release order.
//
//go:noescape
func StoreRelease64(p *uint64, v uint64)

// StoreRelease32 stores v in *p with release order.
//
//go:noescape
func StoreRelease32(p *uint32, v uint32)

// LoadAcquire64 loads *p with acquire order.
//
//go:noescape
func LoadAcquire64(p *uint64) uint64

// LoadAcquire32 loads *p with acquire order.
//
//go:noescape
func LoadAcquire32(p *uint32) uint32

// Publish64 stores v for concurrent readers in this process. There must be only one writer at a
// time. A reader that loads v sees all earlier stores.
func Publish64(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }

// Publish is like Publish64, but for a pointer.
func Publish[T any](p *atomic.Pointer[T], v *T) { *(**T)(unsafe.Pointer(p)) = v }

// Pause executes n PAUSE instructions of 40 to 140 cycles each.
func Pause(n uint32)

// Until64 polls until *p is want: up to tight times without a pause, and then up to paused times
// with a PAUSE after each poll. It returns false if no poll finds want. The load that finds want
// has acquire order.
//
//go:noescape
func Until64(p *uint64, want uint64, tight, paused uint32) bool

// UntilAtLeast64 is like Until64, but polls until *p is at least want.
//
//go:noescape
func UntilAtLeast64(p *uint64, want uint64, tight, paused uint32) bool

// PutLine writes a message to the line at dst: n bytes of payload from src, at most LinePayload,
// then digest, and finally seq, with release order. Payload bytes beyond n keep their values.
//
//go:noescape
func PutLine(dst unsafe.Pointer, seq, digest uint64, src unsafe.Pointer, n int)

// PrefetchWrite is a hint that a line is about to be written. If another thread is still polling
// the line, both threads need an additional transfer of the line.
//
//go:noescape
func PrefetchWrite(line unsafe.Pointer)

// Ticks returns the processor's time-stamp counter, whose frequency is unknown and may change. It
// may jump back if the processors' counters are not synchronized.
func Ticks() uint64

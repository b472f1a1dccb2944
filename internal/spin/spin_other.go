//go:build !amd64 || race

// The race detector does not see accesses by assembly.

package spin

import (
	"sync/atomic"
	"unsafe"
)

// StoreRelease64 stores v in *p with release order: earlier stores become visible before it.
func StoreRelease64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// StoreRelease32 stores v in *p with release order.
func StoreRelease32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// LoadAcquire64 loads *p with acquire order: later loads happen after it.
func LoadAcquire64(p *uint64) uint64 { return atomic.LoadUint64(p) }

// LoadAcquire32 loads *p with acquire order.
func LoadAcquire32(p *uint32) uint32 { return atomic.LoadUint32(p) }

// Publish64 stores v for concurrent readers in this process. There must be only one writer at a
// time. A reader that loads v sees all earlier stores.
func Publish64(p *atomic.Uint64, v uint64) { p.Store(v) }

// Publish is like Publish64, but for a pointer.
func Publish[T any](p *atomic.Pointer[T], v *T) { p.Store(v) }

// Pause spins for a short time, proportional to n.
func Pause(n uint32) {
	const roundsPerPause = 32
	var local atomic.Uint32
	for range uint64(n) * roundsPerPause {
		local.Load()
	}
}

// Until64 polls until *p is want, first without pauses and then with a pause after each poll. It
// returns false if no poll finds want.
func Until64(p *uint64, want uint64, tightPolls, pausedPolls uint32) bool {
	for range tightPolls {
		if atomic.LoadUint64(p) == want {
			return true
		}
	}

	for range pausedPolls {
		if atomic.LoadUint64(p) == want {
			return true
		}

		Pause(1)
	}

	return false
}

// UntilAtLeast64 is like Until64, but polls until *p is at least want.
func UntilAtLeast64(p *uint64, want uint64, tightPolls, pausedPolls uint32) bool {
	for range tightPolls {
		if atomic.LoadUint64(p) >= want {
			return true
		}
	}

	for range pausedPolls {
		if atomic.LoadUint64(p) >= want {
			return true
		}

		Pause(1)
	}

	return false
}

// PutLine writes a message to the cache line at dst: n bytes of payload from src, at most
// LinePayload, then digest, and finally seq, with release order.
func PutLine(dst unsafe.Pointer, seq, digest uint64, src unsafe.Pointer, n int) {
	const (
		digestOffset  = 8 // seq has offset 0
		payloadOffset = 16
	)
	n = min(n, LinePayload)
	if n > 0 {
		payload := unsafe.Slice((*byte)(unsafe.Add(dst, payloadOffset)), n)
		copy(payload, unsafe.Slice((*byte)(src), n))
	}

	*(*uint64)(unsafe.Add(dst, digestOffset)) = digest
	atomic.StoreUint64((*uint64)(dst), seq)
}

// PrefetchWrite does nothing in this build.
func PrefetchWrite(unsafe.Pointer) {}

// Ticks returns 0 in this build.
func Ticks() uint64 { return 0 }

//go:build !amd64 || race

package spin

import (
	"sync/atomic"
	"unsafe"
)

// These are portable versions of the functions that amd64 implements in assembly. The race detector
// needs them too, because it sees only accesses by Go code.

// StoreRelease64 stores v in *p with release order: earlier stores become visible first.
func StoreRelease64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// StoreRelease32 stores v in *p with release order.
func StoreRelease32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// LoadAcquire64 loads *p with acquire order: no later load happens before it.
func LoadAcquire64(p *uint64) uint64 { return atomic.LoadUint64(p) }

// LoadAcquire32 loads *p with acquire order.
func LoadAcquire32(p *uint32) uint32 { return atomic.LoadUint32(p) }

// Pause spins for a short time that is proportional to n.
func Pause(n uint32) {
	const roundsPerPause = 32
	var local atomic.Uint32
	for range uint64(n) * roundsPerPause {
		local.Load()
	}
}

// Until64 polls *p until it is want, and returns false if it gives up. It polls tight times without
// pauses, then paused times with a pause after each poll.
func Until64(p *uint64, want uint64, tight, paused uint32) bool {
	for range tight {
		if atomic.LoadUint64(p) == want {
			return true
		}
	}

	for range paused {
		if atomic.LoadUint64(p) == want {
			return true
		}

		Pause(1)
	}

	return false
}

// UntilAtLeast64 is like Until64, but polls until *p is at least want.
func UntilAtLeast64(p *uint64, want uint64, tight, paused uint32) bool {
	for range tight {
		if atomic.LoadUint64(p) >= want {
			return true
		}
	}

	for range paused {
		if atomic.LoadUint64(p) >= want {
			return true
		}

		Pause(1)
	}

	return false
}

// PutLine writes a message to the cache line at dst: up to LinePayload of the n bytes at src, then
// digest, and finally seq with release order. It does not change the rest of the line.
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

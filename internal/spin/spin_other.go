//go:build !amd64 || race

package spin

import (
	"sync/atomic"
	"unsafe"
)

// This file replaces the assembly of amd64 on other processors, and under the race detector, which
// does not see accesses by assembly.

// StoreRelease64 stores v in *p with release order: earlier stores become visible first.
func StoreRelease64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// StoreRelease32 stores v in *p with release order.
func StoreRelease32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// LoadAcquire64 loads *p with acquire order: no later load happens before it.
func LoadAcquire64(p *uint64) uint64 { return atomic.LoadUint64(p) }

// LoadAcquire32 loads *p with acquire order.
func LoadAcquire32(p *uint32) uint32 { return atomic.LoadUint32(p) }

// Pause spins for a short time, proportional to n.
func Pause(n uint32) {
	const roundsPerPause = 32
	var local atomic.Uint32
	for range uint64(n) * roundsPerPause {
		local.Load()
	}
}

// Until64 polls *p until the value is want. After tightPolls polls without pauses and pausedPolls
// polls with pauses, it gives up and returns false.
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

// PutLine writes a message to the cache line at dst: first the n bytes at src, at most LinePayload,
// then digest, and finally seq with release order. The rest of the line does not change.
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

//go:build !amd64 || race

package spin

import (
	"sync/atomic"
	"unsafe"
)

// On processors other than amd64, and under the race detector, the functions in this file use
// package sync/atomic. For example, rank 0 sends the number 7 to rank 1 through shared memory. Rank
// 0 stores 7, and then a flag by StoreRelease64. Rank 1 polls the flag by LoadAcquire64. When it
// sees the flag, it also sees 7: this is the purpose of release and acquire order.

// StoreRelease64 stores v in *p with release order.
func StoreRelease64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// StoreRelease32 stores v in *p with release order.
func StoreRelease32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// LoadAcquire64 loads *p with acquire order.
func LoadAcquire64(p *uint64) uint64 { return atomic.LoadUint64(p) }

// LoadAcquire32 loads *p with acquire order.
func LoadAcquire32(p *uint32) uint32 { return atomic.LoadUint32(p) }

// Pause waits for a short time that is proportional to n, without access to shared memory.
func Pause(n uint32) {
	const roundsPerPause = 32
	var local atomic.Uint32
	for range uint64(n) * roundsPerPause {
		local.Load()
	}
}

// Until64 polls until *p is want: up to tight times without a pause, and then up to paused times
// with a pause after each poll. It returns false if no poll finds want.
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

// PutLine writes a message to the line at dst: n bytes of payload from src, at most LinePayload,
// then digest, and finally seq, with release order. Payload bytes beyond n keep their values.
func PutLine(dst unsafe.Pointer, seq, digest uint64, src unsafe.Pointer, n int) {
	const (
		digestOffset  = 8 // after seq
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

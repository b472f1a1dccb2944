//go:build !amd64 || race

package spin

import (
	"sync/atomic"
	"unsafe"
)

// StoreRelease64 stores v; who loads it with acquire order sees all that was stored before.
func StoreRelease64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// StoreRelease32 is StoreRelease64 for 32 bits.
func StoreRelease32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// LoadAcquire64 loads *p before anything that follows.
func LoadAcquire64(p *uint64) uint64 { return atomic.LoadUint64(p) }

// LoadAcquire32 is LoadAcquire64 for 32 bits.
func LoadAcquire32(p *uint32) uint32 { return atomic.LoadUint32(p) }

// Pause passes a little time, in proportion to n, without touching shared memory.
func Pause(n uint32) {
	const roundsPerPause = 32
	var local atomic.Uint32
	for range uint64(n) * roundsPerPause {
		local.Load()
	}
}

// Until64 polls p until it holds want: first tight times in a row, then paused times with a pause
// in between. It returns false when both are used up. The load that found want has acquire order.
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

// UntilAtLeast64 is Until64 for any value that is want or more, without wrapping around.
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

// PutLine writes a message into the line at dst: n bytes of payload from src at dst+16, digest at
// dst+8, and seq at dst last, with release order. Who has loaded seq with acquire order sees the
// rest. Payload bytes beyond n keep their value.
//
// Preconditions: dst is aligned to 64 and n is at most LinePayload; a larger n writes LinePayload
// bytes.
func PutLine(dst unsafe.Pointer, seq, digest uint64, src unsafe.Pointer, n int) {
	n = min(n, LinePayload)
	if n > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Add(dst, 16)), n), unsafe.Slice((*byte)(src), n))
	}
	*(*uint64)(unsafe.Add(dst, 8)) = digest
	atomic.StoreUint64((*uint64)(dst), seq)
}

// PrefetchWrite tells the processor that a line is about to be written; here it does nothing.
func PrefetchWrite(unsafe.Pointer) {}

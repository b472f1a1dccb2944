//go:build !race

package spin

import (
	"encoding/binary"
	"runtime"
	"testing"
	"unsafe"
)

type mailbox struct {
	buffer [2 * LineBytes]byte
}

func (m *mailbox) line() unsafe.Pointer {
	return unsafe.Pointer(&m.buffer[-uintptr(unsafe.Pointer(&m.buffer[0]))%LineBytes])
}

func (m *mailbox) sequence() *uint64 { return (*uint64)(m.line()) }

// await waits for a sequence number. It yields, in case both goroutines share one processor.
func (m *mailbox) await(sequence uint64) {
	for !UntilAtLeast64(m.sequence(), sequence, 100, 100) {
		runtime.Gosched()
	}
}

// TestSequenceNumberPublishesDigestAndPayload reads a sequence number and then the digest and
// the payload, which must match the number. This file is not built with the race detector,
// because the detector does not see how this package orders the goroutines' accesses.
func TestSequenceNumberPublishesDigestAndPayload(t *testing.T) {
	const rounds = 20000
	ping, pong := new(mailbox), new(mailbox)
	done := make(chan uint64)
	go func() {
		var wrong uint64
		for i := uint64(1); i <= rounds; i++ {
			ping.await(i)
			digest := LoadAcquire64((*uint64)(unsafe.Add(ping.line(), 8)))
			payload := LoadAcquire64((*uint64)(unsafe.Add(ping.line(), 56)))
			if digest != ^i || payload != 3*i {
				wrong++
			}

			StoreRelease64(pong.sequence(), i)
		}

		done <- wrong
	}()
	var payload [LinePayload]byte
	for i := uint64(1); i <= rounds; i++ {
		binary.LittleEndian.PutUint64(payload[40:], 3*i)
		PutLine(ping.line(), i, ^i, unsafe.Pointer(&payload[0]), len(payload))
		pong.await(i)
	}

	if wrong := <-done; wrong != 0 {
		t.Errorf("%d of %d messages were torn, want 0", wrong, rounds)
	}
}

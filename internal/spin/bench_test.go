package spin

import (
	"sync/atomic"
	"testing"
	"unsafe"
)

func BenchmarkStoreRelease64(b *testing.B) {
	var word uint64
	for b.Loop() {
		StoreRelease64(&word, 1)
	}
}

func BenchmarkAtomicStore(b *testing.B) {
	var word atomic.Uint64
	for b.Loop() {
		word.Store(1)
	}
}

func BenchmarkUntilFoundImmediately(b *testing.B) {
	word := uint64(1)
	for b.Loop() {
		UntilAtLeast64(&word, 1, 1, 0)
	}
}

func BenchmarkPause(b *testing.B) {
	for b.Loop() {
		Pause(1)
	}
}

func BenchmarkPutLine(b *testing.B) {
	var buffer [2 * LineBytes]byte
	var source [LinePayload]byte
	line := unsafe.Pointer(&buffer[-uintptr(unsafe.Pointer(&buffer[0]))%LineBytes])
	for b.Loop() {
		PutLine(line, 1, 2, unsafe.Pointer(&source), len(source))
	}
}

package spin

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"unsafe"
)

func TestStoresChangeOnlyTheirWord(t *testing.T) {
	const value64, value32 = 0x1122334455667788, 0x99AABBCC // all bytes differ
	words := [3]uint64{1, 2, 3}
	StoreRelease64(&words[1], value64)
	if words != [3]uint64{1, value64, 3} {
		t.Errorf("words after StoreRelease64 = %#x; want only the second changed", words)
	}

	if got := LoadAcquire64(&words[1]); got != value64 {
		t.Errorf("LoadAcquire64 = %#x, want %#x", got, uint64(value64))
	}

	halves := [3]uint32{1, 2, 3}
	StoreRelease32(&halves[1], value32)
	if halves != [3]uint32{1, value32, 3} {
		t.Errorf("words after StoreRelease32 = %#x; want only the second changed", halves)
	}

	if got := LoadAcquire32(&halves[1]); got != value32 {
		t.Errorf("LoadAcquire32 = %#x, want %#x", got, uint32(value32))
	}
}

func TestUntil(t *testing.T) {
	for name, c := range map[string]struct {
		value   uint64 // constant value of the polled word
		awaited uint64
		tight   uint32 // number of polls without pauses
		paused  uint32 // number of later polls, with a pause after each
		exact   bool   // wanted result of Until64
		atLeast bool   // wanted result of UntilAtLeast64
	}{
		"tight polling finds the value": {
			value: 5, awaited: 5, tight: 1, paused: 0, exact: true, atLeast: true,
		},
		"paused polling finds the value": {
			value: 5, awaited: 5, tight: 0, paused: 1, exact: true, atLeast: true,
		},
		"without polls nothing is found": {
			value: 5, awaited: 5, tight: 0, paused: 0, exact: false, atLeast: false,
		},
		"a smaller value is not found": {
			value: 4, awaited: 5, tight: 3, paused: 3, exact: false, atLeast: false,
		},
		"a larger value is found by tight polling": {
			value: 6, awaited: 5, tight: 3, paused: 0, exact: false, atLeast: true,
		},
		"a larger value is found by paused polling": {
			value: 6, awaited: 5, tight: 0, paused: 3, exact: false, atLeast: true,
		},
		"the comparison is unsigned": {
			value: 1 << 63, awaited: 1, tight: 1, paused: 1, exact: false, atLeast: true,
		},
		"the comparison does not wrap around": {
			value: 0, awaited: math.MaxUint64, tight: 1, paused: 1, exact: false, atLeast: false,
		},
		"all bits are compared": {
			value: 1<<32 | 5, awaited: 5, tight: 1, paused: 1, exact: false, atLeast: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Until64(&c.value, c.awaited, c.tight, c.paused); got != c.exact {
				t.Errorf("Until64 = %t, want %t", got, c.exact)
			}

			if got := UntilAtLeast64(&c.value, c.awaited, c.tight, c.paused); got != c.atLeast {
				t.Errorf("UntilAtLeast64 = %t, want %t", got, c.atLeast)
			}
		})
	}
}

func TestPrefetchWriteChangesNoMemoryAndNeverFaults(t *testing.T) {
	words := [3]uint64{1, 2, 3}
	PrefetchWrite(unsafe.Pointer(&words[1]))
	if words != [3]uint64{1, 2, 3} {
		t.Errorf("words after PrefetchWrite = %#x, want 1, 2 and 3", words)
	}

	PrefetchWrite(nil)
}

// Offsets in the cache line that PutLine writes. The sequence number is at offset 0.
const (
	digestOffset  = 8
	payloadOffset = 16
)

// offsetOfLine returns the offset of the first cache line that begins in buffer.
func offsetOfLine(buffer []byte) int {
	return int(-uintptr(unsafe.Pointer(&buffer[0])) % LineBytes)
}

func TestPutLineKeepsOtherBytes(t *testing.T) {
	const number, digest = 0x0102030405060708, 0x1112131415161718
	const fill = 0xA5 // differs from all bytes that PutLine writes
	source := []byte("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	for length := range LinePayload + 1 {
		var buffer [3 * LineBytes]byte // room for an aligned line and bytes after it
		for i := range buffer {
			buffer[i] = fill
		}

		want := buffer
		offset := offsetOfLine(buffer[:])
		line := want[offset:]
		binary.LittleEndian.PutUint64(line, number)
		binary.LittleEndian.PutUint64(line[digestOffset:], digest)
		copy(line[payloadOffset:], source[:length])
		PutLine(unsafe.Pointer(&buffer[offset]), number, digest, unsafe.Pointer(&source[0]), length)
		if !bytes.Equal(buffer[:], want[:]) {
			t.Errorf("payload of %d bytes: got %q, want %q", length, buffer, want)
		}
	}
}

func TestPutLineTruncatesPayload(t *testing.T) {
	var buffer [3 * LineBytes]byte
	var source [2 * LinePayload]byte
	for i := range source {
		source[i] = 1
	}

	offset := offsetOfLine(buffer[:])
	PutLine(unsafe.Pointer(&buffer[offset]), 0, 0, unsafe.Pointer(&source[0]), len(source))
	if got := bytes.Count(buffer[:], []byte{1}); got != LinePayload {
		t.Errorf("wrote %d bytes of payload, want %d", got, LinePayload)
	}
}

func TestPutLineWithoutPayloadNeedsNoSource(t *testing.T) {
	var buffer [2 * LineBytes]byte
	offset := offsetOfLine(buffer[:])
	PutLine(unsafe.Pointer(&buffer[offset]), 1, 2, nil, 0)
	number := binary.LittleEndian.Uint64(buffer[offset:])
	digest := binary.LittleEndian.Uint64(buffer[offset+digestOffset:])
	if number != 1 || digest != 2 {
		t.Errorf("got number %d and digest %d, want 1 and 2", number, digest)
	}
}

func TestNothingAllocates(t *testing.T) {
	allocations := testing.AllocsPerRun(10, func() {
		var word uint64
		var half uint32
		var line [2 * LineBytes]byte
		source := [LinePayload]byte{1}
		StoreRelease64(&word, 1)
		StoreRelease32(&half, uint32(LoadAcquire64(&word)))
		UntilAtLeast64(&word, uint64(LoadAcquire32(&half)), 1, 1)
		Until64(&word, 1, 1, 1)
		offset := offsetOfLine(line[:])
		PutLine(unsafe.Pointer(&line[offset]), 1, 2, unsafe.Pointer(&source[0]), len(source))
	})
	if allocations != 0 {
		t.Errorf("got %v allocations, want none", allocations)
	}
}

func TestTicksGrow(t *testing.T) {
	first := Ticks()
	for range 100 {
		if next := Ticks(); next < first {
			t.Fatalf("Ticks() = %d after %d; want at least %[2]d", next, first)
		}
	}
}

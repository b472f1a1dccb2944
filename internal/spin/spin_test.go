package spin

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"unsafe"
)

// TestStoresChangeOnlyTheirWord stores to the middle of three words, and loads the value again.
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

// TestUntil polls a word that contains value until it contains awaited, or at least awaited. First
// come polls without a pause (tight), and then polls with pauses.
func TestUntil(t *testing.T) {
	cases := map[string]struct {
		value, awaited uint64
		tight, paused  uint32 // numbers of polls
		exact, atLeast bool   // wanted results of Until64 and UntilAtLeast64
	}{
		// value, awaited, tight, paused, exact, atLeast
		"tight polling finds the value":             {5, 5, 1, 0, true, true},
		"paused polling finds the value":            {5, 5, 0, 1, true, true},
		"without polls nothing is found":            {5, 5, 0, 0, false, false},
		"a smaller value is not found":              {4, 5, 3, 3, false, false},
		"a larger value is found by tight polling":  {6, 5, 3, 0, false, true},
		"a larger value is found by paused polling": {6, 5, 0, 3, false, true},
		"the comparison is unsigned":                {1 << 63, 1, 1, 1, false, true},
		"the comparison does not wrap around":       {0, math.MaxUint64, 1, 1, false, false},
		"all bits are compared":                     {1<<32 | 5, 5, 1, 1, false, true},
	}
	for name, c := range cases {
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

	PrefetchWrite(nil) // must not fault
}

// offsetOfLine returns the offset of the first aligned line in a buffer.
func offsetOfLine(buffer []byte) int {
	return int(-uintptr(unsafe.Pointer(&buffer[0])) % LineBytes)
}

// TestPutLineKeepsOtherBytes writes lines with payloads of every length. PutLine must write two
// numbers of 8 bytes and the payload, and must not change the bytes before and after them.
func TestPutLineKeepsOtherBytes(t *testing.T) {
	source := []byte("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	const number, digest = 0x0102030405060708, 0x1112131415161718
	for n := range LinePayload + 1 {
		var buffer [3 * LineBytes]byte // An aligned line has other bytes after it.
		for i := range buffer {
			buffer[i] = 0xA5
		}

		want := buffer
		offset := offsetOfLine(buffer[:])
		binary.LittleEndian.PutUint64(want[offset:], number)
		binary.LittleEndian.PutUint64(want[offset+8:], digest)
		copy(want[offset+16:], source[:n])
		PutLine(unsafe.Pointer(&buffer[offset]), number, digest, unsafe.Pointer(&source[0]), n)
		if !bytes.Equal(buffer[:], want[:]) {
			t.Errorf("payload of %d bytes: got %q, want %q", n, buffer, want)
		}
	}
}

// TestPutLineTruncatesPayload passes a payload that is longer than LinePayload.
func TestPutLineTruncatesPayload(t *testing.T) {
	var buffer [3 * LineBytes]byte
	var source [100]byte
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
	if buffer[offset] != 1 || buffer[offset+8] != 2 {
		t.Errorf("got number %d and digest %d, want 1 and 2", buffer[offset], buffer[offset+8])
	}
}

// TestNothingAllocates calls the functions for words and lines in shared memory.
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
		offset := -uintptr(unsafe.Pointer(&line[0])) % LineBytes
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

package reduce

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"
)

func TestCopyAtEveryMisalignment(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	random := make([]byte, strideBytes+100)
	for i := range random {
		random[i] = byte(r.Uint32())
	}

	sizes := []int{0, 1, 63, 64, 127, 128, 129, 191, 192, 1000, 4096, len(random)}
	for _, size := range sizes {
		for misalignment := range lineBytes {
			for _, stream := range []bool{false, true} {
				src := newGuarded(size, (3*misalignment)%lineBytes)
				dst := newGuarded(size, misalignment)
				copy(src.data, random)
				Copy(dst.pointer(), src.pointer(), size, Hint{Stream: stream})
				if !bytes.Equal(src.data, dst.data) || !dst.intact() {
					t.Fatalf("Copy of %d bytes to offset %d in a line, stream %v, wrote the wrong bytes",
						size, misalignment, stream)
				}
			}
		}
	}
}

// TestCopyToEndOfAllocation copies up to the end of a Go slice, where another allocation may begin.
// Under the race detector, the program crashes if the code forms a pointer past the end.
func TestCopyToEndOfAllocation(t *testing.T) {
	src, dst := make([]byte, 16<<20), make([]byte, 16<<20)
	src[len(src)-1] = 7
	Copy(unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), len(src), Hint{Stream: true})
	if !bytes.Equal(src, dst) {
		t.Error("Copy wrote the wrong bytes")
	}
}

func TestCopyInPlaceChangesNothing(t *testing.T) {
	g := newGuarded(500, 5)
	copy(g.data, "unchanged bytes")
	want := bytes.Clone(g.data)
	Copy(g.pointer(), g.pointer(), len(g.data), Hint{Stream: true})
	if !bytes.Equal(g.data, want) || !g.intact() {
		t.Error("Copy in place changed the bytes")
	}
}

func TestFillSetsOnlyItsRange(t *testing.T) {
	for _, size := range []int{0, 1, 2, 3, 63, 64, 65, 1000, 8 << 10, 8<<10 + 1, 100_003} {
		for _, value := range []byte{0, 1, 0xFF} {
			g := newGuarded(size, size%lineBytes)
			Fill(g.pointer(), value, size)
			if bytes.Count(g.data, []byte{value}) != size || !g.intact() {
				t.Errorf("Fill of %d bytes with %#x wrote the wrong bytes", size, value)
			}
		}
	}
}

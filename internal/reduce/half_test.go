package reduce

import (
	"math"
	"testing"
)

func TestHalvesRoundTrip(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		want := h
		if h&0x7C00 == 0x7C00 && h&0x3FF != 0 {
			want |= float16Quiet
		}
		if got := Float16Bits(Float16Value(h)); got != want {
			t.Errorf("float16 %#04x became %#04x, want %#04x", h, got, want)
		}
		want = h
		if h&0x7F80 == 0x7F80 && h&0x7F != 0 {
			want |= quietBit32 >> 16
		}
		if got := BFloat16Bits(BFloat16Value(h)); got != want {
			t.Errorf("bfloat16 %#04x became %#04x, want %#04x", h, got, want)
		}
	}
}

func TestWideningAgreesWithReferenceForEveryHalf(t *testing.T) {
	for i := range 1 << 16 {
		got := math.Float32bits(Float16Value(uint16(i)))
		if want := math.Float32bits(referenceFloat16(uint16(i))); got != want {
			t.Errorf("float16 %#04x widened to %#08x, want %#08x", i, got, want)
		}
	}
}

// TestRoundingAgreesWithReferenceNearEveryHalf tests the neighbors of every half and of every
// midpoint between two halves, where the rounded value changes.
func TestRoundingAgreesWithReferenceNearEveryHalf(t *testing.T) {
	for i := range 1 << 16 {
		for _, bits := range turningPoints(uint16(i)) {
			f := math.Float32frombits(bits)
			if got, want := Float16Bits(f), uint16(referenceRound(Float16, f)); got != want {
				t.Fatalf("%#08x rounded to float16 %#04x, want %#04x", bits, got, want)
			}
			if got, want := BFloat16Bits(f), uint16(referenceRound(BFloat16, f)); got != want {
				t.Fatalf("%#08x rounded to bfloat16 %#04x, want %#04x", bits, got, want)
			}
		}
	}
}

func turningPoints(h uint16) []uint32 {
	wide := math.Float32bits(Float16Value(h))
	above := math.Float32bits(Float16Value(h&0x8000 | (h+1)&0x7FFF))
	middle := wide + (above-wide)/2
	brain := uint32(h) << 16
	return []uint32{
		wide, wide + 1, wide - 1, middle - 1, middle, middle + 1,
		brain, brain + 1, brain - 1, brain + 0x7FFF, brain + 0x8000, brain + 0x8001,
	}
}

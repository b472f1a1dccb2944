package reduce

import (
	"math"
	"testing"
)

// Halves are 16-bit floats: float16 and bfloat16, which is the upper half of a float32.

// TestHalvesRoundTrip converts all halves to float32 and back. This must change only NaNs, by
// setting the bit that makes them quiet.
func TestHalvesRoundTrip(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		want := h
		isNaN := h&float16Infinity == float16Infinity && h&0x3FF != 0 // the fraction is not 0
		if isNaN {
			want |= float16QuietBit
		}

		if got := Float16Bits(Float16Value(h)); got != want {
			t.Errorf("float16 %#04x became %#04x, want %#04x", h, got, want)
		}

		want = h
		isNaN = h&0x7F80 == 0x7F80 && h&0x7F != 0 // as a bfloat16, where 0x7F80 is infinity
		if isNaN {
			want |= float32QuietBit >> 16
		}

		if got := BFloat16Bits(BFloat16Value(h)); got != want {
			t.Errorf("bfloat16 %#04x became %#04x, want %#04x", h, got, want)
		}
	}
}

// TestWideningAgreesWithReferenceForEveryHalf converts every float16 to float32. A bfloat16 needs
// no such test, because its bits are only shifted.
func TestWideningAgreesWithReferenceForEveryHalf(t *testing.T) {
	for i := range 1 << 16 {
		got := math.Float32bits(Float16Value(uint16(i)))
		if want := math.Float32bits(referenceFloat16(uint16(i))); got != want {
			t.Errorf("float16 %#04x widened to %#08x, want %#08x", i, got, want)
		}
	}
}

// TestRoundingAgreesWithReferenceNearEveryHalf rounds every 16-bit float, every midpoint between
// two of them, and the neighbors of both in float32, because the rounded value changes there.
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

// turningPoints returns the bits of float32 numbers near which rounding changes: near the float16
// with bits h, near the bfloat16 with bits h, and near the midpoint between each and its neighbor
// of greater magnitude.
func turningPoints(h uint16) []uint32 {
	float16 := math.Float32bits(Float16Value(h))
	const sign = 0x8000
	neighbor := math.Float32bits(Float16Value(h&sign | (h+1)&^sign))
	middle := float16 + (neighbor-float16)/2
	bfloat16 := uint32(h) << 16
	return []uint32{
		float16, float16 + 1, float16 - 1, middle - 1, middle, middle + 1,
		bfloat16, bfloat16 + 1, bfloat16 - 1,
		bfloat16 + 0x7FFF, bfloat16 + 0x8000, bfloat16 + 0x8001, // the midpoint and its neighbors
	}
}

// float8Value returns the number that the bits of a positive float8 (e4m3) represent. These have 4
// bits of exponent, with a bias of 7, and 3 bits of fraction.
func float8Value(bits uint8) float32 {
	exponent, fraction := int(bits>>3&15), float64(bits&7)
	if exponent == 0 { // a subnormal number
		return float32(math.Ldexp(fraction, -9))
	}

	// The significand has an implicit bit, 8. Ldexp also divides it by 8.
	return float32(math.Ldexp(8+fraction, exponent-10))
}

// TestFloat8RoundsToNearestEven rounds every number in the format, which must not change it. A
// midpoint between two neighbors must become the one with even bits, and numbers beyond the largest
// must become the largest.
func TestFloat8RoundsToNearestEven(t *testing.T) {
	const largest, sign, nan = 0x7e, 0x80, 0x7f // largest is 448
	for bits := uint8(0); bits <= largest; bits++ {
		v := float8Value(bits)
		if got := Float8Bits(v); got != bits {
			t.Errorf("Float8Bits(%g) = %#x, want %#x", v, got, bits)
		}

		if got := Float8Bits(-v); got != bits|sign {
			t.Errorf("Float8Bits(%g) = %#x, want %#x", -v, got, bits|sign)
		}

		if bits == largest {
			break
		}

		middle := (v + float8Value(bits+1)) / 2
		even := bits + bits&1 // bits or bits+1, whichever is even
		if got := Float8Bits(middle); got != even {
			t.Errorf("Float8Bits(%g) = %#x, want %#x", middle, got, even)
		}
	}

	inf := float32(math.Inf(1))
	for v, want := range map[float32]uint8{
		449: largest, 1e30: largest, inf: largest, -inf: largest | sign,
	} {
		if got := Float8Bits(v); got != want {
			t.Errorf("Float8Bits(%g) = %#x, want %#x", v, got, want)
		}
	}

	if got := Float8Bits(float32(math.NaN())); got != nan {
		t.Errorf("Float8Bits(NaN) = %#x, want %#x", got, nan)
	}
}

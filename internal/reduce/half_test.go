package reduce

import (
	"math"
	"testing"
)

// A half is a float16, which has 5 bits of exponent and 10 bits of fraction, or a bfloat16, the
// upper half of a float32. In a NaN, the highest bit of the fraction is the quiet bit.

const (
	bfloat16Infinity = 0x7F80 // the exponent of all ones
	bfloat16QuietBit = float32QuietBit >> 16
)

// Conversion to float32 and back changes only NaNs, which become quiet.
func TestHalvesRoundTrip(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		want := quiet(h, float16Infinity, float16QuietBit)
		if got := Float16Bits(Float16Value(h)); got != want {
			t.Errorf("float16 %#04x became %#04x, want %#04x", h, got, want)
		}

		want = quiet(h, bfloat16Infinity, bfloat16QuietBit)
		if got := BFloat16Bits(BFloat16Value(h)); got != want {
			t.Errorf("bfloat16 %#04x became %#04x, want %#04x", h, got, want)
		}
	}
}

// quiet sets the quiet bit of a NaN. infinity is +Inf in the format of half.
func quiet(half, infinity, quietBit uint16) uint16 {
	const sign = 0x8000
	magnitude := half &^ sign
	isNaN := magnitude > infinity
	if isNaN {
		return half | quietBit
	}

	return half
}

// BFloat16Value only shifts bits and needs no such test.
func TestWideningAgreesWithReferenceForEveryHalf(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		got := math.Float32bits(Float16Value(h))
		want := math.Float32bits(referenceFloat16(h))
		if got != want {
			t.Errorf("float16 %#04x widened to %#08x, want %#08x", h, got, want)
		}
	}
}

// Results change at the midpoints between halves.
func TestRoundingAgreesWithReferenceNearEveryHalf(t *testing.T) {
	for i := range 1 << 16 {
		for _, bits := range numbersNear(uint16(i)) {
			f := math.Float32frombits(bits)
			got := Float16Bits(f)
			want := uint16(referenceRound(Float16, f))
			if got != want {
				t.Fatalf("%#08x rounded to float16 %#04x, want %#04x", bits, got, want)
			}

			got = BFloat16Bits(f)
			want = uint16(referenceRound(BFloat16, f))
			if got != want {
				t.Fatalf("%#08x rounded to bfloat16 %#04x, want %#04x", bits, got, want)
			}
		}
	}
}

// numbersNear returns the bits of float32s near the float16 h and the bfloat16 h, and near the
// midpoints between these and the next halves.
//
// Successive float32s have successive bits, so the middle of the bits is the midpoint, except next
// to 0 and infinity.
func numbersNear(h uint16) []uint32 {
	const sign = 0x8000
	next := h&sign | (h+1)&^sign
	float16 := math.Float32bits(Float16Value(h))
	nextFloat16 := math.Float32bits(Float16Value(next))
	float16Middle := float16 + (nextFloat16-float16)/2
	bfloat16 := uint32(h) << 16
	bfloat16Middle := bfloat16 + 0x8000 // halfway to bfloat16+0x10000, the next bfloat16
	return []uint32{
		float16, float16 + 1, float16 - 1,
		float16Middle - 1, float16Middle, float16Middle + 1,
		bfloat16, bfloat16 + 1, bfloat16 - 1,
		bfloat16Middle - 1, bfloat16Middle, bfloat16Middle + 1,
	}
}

// Float8 (e4m3) has 4 bits of exponent with a bias of 7, and 3 bits of fraction.
const (
	float8Largest = 0x7E // 448
	float8NaN     = 0x7F
	float8Sign    = 0x80
)

func TestFloat8RoundsToNearestEven(t *testing.T) {
	for bits := uint8(0); bits <= float8Largest; bits++ {
		v := float8Value(bits)
		checkFloat8(t, v, bits)
		checkFloat8(t, -v, bits|float8Sign)
	}

	for bits := uint8(0); bits < float8Largest; bits++ {
		middle := (float8Value(bits) + float8Value(bits+1)) / 2
		isOdd := bits&1 == 1
		if isOdd {
			checkFloat8(t, middle, bits+1)
		} else {
			checkFloat8(t, middle, bits)
		}
	}

	infinity := float32(math.Inf(1))
	checkFloat8(t, 449, float8Largest)
	checkFloat8(t, 1e30, float8Largest)
	checkFloat8(t, infinity, float8Largest)
	checkFloat8(t, -infinity, float8Largest|float8Sign)
	checkFloat8(t, float32(math.NaN()), float8NaN)
}

// float8Value returns the value of a positive float8.
func float8Value(bits uint8) float32 {
	exponent := int(bits >> 3 & 15)
	fraction := float64(bits & 7) // in units of 1/8
	if exponent == 0 {            // subnormal: fraction/8 * 2^-6
		return float32(math.Ldexp(fraction, -9))
	}

	// (1 + fraction/8) * 2^(exponent-7)
	return float32(math.Ldexp(8+fraction, exponent-10))
}

func checkFloat8(t *testing.T, v float32, want uint8) {
	t.Helper()
	if got := Float8Bits(v); got != want {
		t.Errorf("Float8Bits(%g) = %#x, want %#x", v, got, want)
	}
}

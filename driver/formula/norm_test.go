package formula

import (
	"math"
	"testing"
)

// e4m3Value returns the number that the bits of a float8 (e4m3) represent.
func e4m3Value(bits uint8) float32 {
	exponent, fraction := int(bits>>3&15), float64(bits&7)
	if exponent == 0 {
		return float32(math.Ldexp(fraction, -9))
	}
	return float32(math.Ldexp(8+fraction, exponent-10))
}

// TestE4M3RoundsToNearestEven rounds every number in the format, and every midpoint between two
// neighboring numbers.
func TestE4M3RoundsToNearestEven(t *testing.T) {
	const largest = 0x7e // 448
	for bits := uint8(0); bits <= largest; bits++ {
		v := e4m3Value(bits)
		if got := E4M3(v); got != bits {
			t.Errorf("E4M3(%g) = %#x; want %#x", v, got, bits)
		}
		if got := E4M3(-v); v > 0 && got != bits|0x80 {
			t.Errorf("E4M3(%g) = %#x; want %#x", -v, got, bits|0x80)
		}
		if bits == largest {
			break
		}
		middle := (v + e4m3Value(bits+1)) / 2
		if got, want := E4M3(middle), bits+bits&1; got != want {
			t.Errorf("E4M3(%g) = %#x; want %#x", middle, got, want)
		}
	}
	inf := float32(math.Inf(1))
	for v, want := range map[float32]uint8{
		449: largest, 1e30: largest, inf: largest, -inf: largest | 0x80,
	} {
		if got := E4M3(v); got != want {
			t.Errorf("E4M3(%g) = %#x; want %#x", v, got, want)
		}
	}
	if got := E4M3(float32(math.NaN())); got != 0x7f {
		t.Errorf("E4M3(NaN) = %#x; want 0x7f", got)
	}
}

package reduce

import "math"

const (
	float32QuietBit = 1 << 22 // set in a quiet float32 NaN
	float32Infinity = 0xFF << 23

	float16Infinity = 0x7C00
	float16QuietBit = 0x0200
)

// Float16Value converts a binary16 number to float32. A signaling NaN becomes quiet.
func Float16Value(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent, mantissa := uint32(h>>10)&0x1F, uint32(h)&0x3FF
	switch {
	case exponent == 0x1F && mantissa != 0:
		return math.Float32frombits(sign | float32Infinity | float32QuietBit | mantissa<<13)
	case exponent == 0x1F:
		return math.Float32frombits(sign | float32Infinity)
	case exponent == 0: // zero or subnormal: a multiple of 2^-24
		magnitude := float32(mantissa) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(magnitude))
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | mantissa<<13)
}

// Float16Bits rounds f to the nearest binary16, with ties to even. Overflow gives infinity.
func Float16Bits(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	magnitude := bits & 0x7FFFFFFF
	switch {
	case magnitude > float32Infinity:
		return sign | float16Infinity | float16QuietBit | uint16(magnitude>>13&0x3FF)
	case magnitude >= (127+16)<<23: // 65536 and above, including infinity
		return sign | float16Infinity
	case magnitude < (127-14)<<23: // below the smallest normal number
		// Adding 0.5 leaves the number of units of 2^-24 in the low bits, rounded to nearest even.
		sum := math.Float32frombits(magnitude) + 0.5
		return sign | uint16(math.Float32bits(sum)-math.Float32bits(0.5))
	}
	// Rounding may carry into the exponent, even up to infinity, which gives the correct result.
	rebiased := magnitude - (127-15)<<23
	return sign | uint16((rebiased+0xFFF+rebiased>>13&1)>>13)
}

// BFloat16Value converts a bfloat16 number to float32. A signaling NaN stays signaling.
func BFloat16Value(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// BFloat16Bits rounds f to the nearest bfloat16, with ties to even. Overflow gives infinity. A NaN
// becomes quiet.
func BFloat16Bits(f float32) uint16 {
	bits := math.Float32bits(f)
	if bits&0x7FFFFFFF > float32Infinity {
		return uint16((bits | float32QuietBit) >> 16)
	}
	return uint16((bits + 0x7FFF + bits>>16&1) >> 16)
}

// Float8Bits rounds f to the nearest float8 (e4m3), with ties to even. Larger magnitudes become
// 448, and NaNs 0x7f.
func Float8Bits(f float32) uint8 {
	const (
		largestFloat8  = 0x43e00000 // 448
		smallestNormal = 0x3c800000 // 2^-6
		biasDifference = 120 << 3
	)
	bits := math.Float32bits(f)
	sign, magnitude := uint8(bits>>24&0x80), bits&0x7FFFFFFF
	switch {
	case f != f:
		return 0x7F
	case magnitude >= largestFloat8:
		return sign | 0x7E
	case magnitude < smallestNormal: // subnormal: a multiple of 2^-9
		return sign | uint8(math.RoundToEven(math.Abs(float64(f))*512))
	}
	return sign | uint8((magnitude+0x7FFFF+magnitude>>20&1)>>20-biasDifference)
}

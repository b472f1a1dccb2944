package reduce

import "math"

// Bit patterns of float32 and float16 (IEEE 754 binary16). A quiet NaN has the quiet bit.
const (
	float32QuietBit = 1 << 22
	float32Infinity = 0xFF << 23

	float16Infinity = 0x7C00
	float16QuietBit = 0x0200
)

// Biases of the exponents, and the number of bits by which a float32 fraction is longer.
const (
	float32Bias   = 127
	float16Bias   = 15
	float16Excess = 13
)

// Float16Value converts a binary16 number to float32. A signaling NaN becomes quiet.
func Float16Value(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent := uint32(h>>10) & 0x1F
	fraction := uint32(h) & 0x3FF
	switch {
	case exponent == 0x1F && fraction != 0: // a NaN
		return math.Float32frombits(
			sign | float32Infinity | float32QuietBit | fraction<<float16Excess)
	case exponent == 0x1F:
		return math.Float32frombits(sign | float32Infinity)
	case exponent == 0: // zero or subnormal: a multiple of 2^-24
		magnitude := float32(fraction) * (1.0 / (1 << 24)) // exact
		return math.Float32frombits(sign | math.Float32bits(magnitude))
	}

	exponent += float32Bias - float16Bias
	return math.Float32frombits(sign | exponent<<23 | fraction<<float16Excess)
}

// Float16Bits rounds f to the nearest binary16, with ties to even. Overflow gives infinity.
func Float16Bits(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	magnitude := bits & 0x7FFFFFFF
	switch {
	case magnitude > float32Infinity: // a NaN
		return sign | float16Infinity | float16QuietBit | uint16(magnitude>>float16Excess&0x3FF)
	case magnitude >= (float32Bias+16)<<23: // 2^16 and above, including infinity
		return sign | float16Infinity
	case magnitude < (float32Bias-14)<<23: // below 2^-14, the smallest normal number
		// A subnormal is a number of units of 2^-24, which is also the unit of the last place of a
		// float32 from 0.5 to 1. Adding 0.5 therefore rounds to nearest even, and leaves the number
		// of units in the low bits.
		sum := math.Float32frombits(magnitude) + 0.5
		return sign | uint16(math.Float32bits(sum)-math.Float32bits(0.5))
	}

	// Adding 0xFFF plus the lowest bit that is kept rounds to nearest even. The sum may carry into
	// the exponent, even up to infinity. That is the correct result.
	rebiased := magnitude - (float32Bias-float16Bias)<<23
	lowestKept := rebiased >> float16Excess & 1
	return sign | uint16((rebiased+0xFFF+lowestKept)>>float16Excess)
}

// BFloat16Value converts a bfloat16 number to float32. A signaling NaN stays signaling.
func BFloat16Value(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// BFloat16Bits rounds f to the nearest bfloat16, with ties to even. Overflow gives infinity. A NaN
// becomes quiet.
func BFloat16Bits(f float32) uint16 {
	bits := math.Float32bits(f)
	isNaN := bits&0x7FFFFFFF > float32Infinity
	if isNaN {
		return uint16((bits | float32QuietBit) >> 16)
	}

	lowestKept := bits >> 16 & 1
	return uint16((bits + 0x7FFF + lowestKept) >> 16)
}

// Float8Bits rounds f to the nearest float8 (e4m3), with ties to even. Magnitudes above 448, the
// largest float8, become 448. All NaNs become 0x7f.
func Float8Bits(f float32) uint8 {
	const (
		largestFloat8  = 0x43e00000 // 448 as a float32
		smallestNormal = 0x3c800000 // 2^-6 as a float32
		biasDifference = 120 << 3   // exponent biases 127 and 7, above 3 bits of fraction
	)
	bits := math.Float32bits(f)
	sign := uint8(bits >> 24 & 0x80)
	magnitude := bits & 0x7FFFFFFF
	switch {
	case f != f: // a NaN
		return 0x7F
	case magnitude >= largestFloat8:
		return sign | 0x7E
	case magnitude < smallestNormal: // subnormal: a multiple of 2^-9
		units := math.RoundToEven(math.Abs(float64(f)) * 512)
		return sign | uint8(units) // 8 units are the smallest normal number
	}

	// As in Float16Bits: round to nearest even, and convert the bias of the exponent.
	lowestKept := magnitude >> 20 & 1
	rounded := (magnitude + 0x7FFFF + lowestKept) >> 20
	return sign | uint8(rounded-biasDifference)
}

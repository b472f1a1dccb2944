package reduce

import "math"

// Number of bits of the formats, and the bias that is added to the exponent:
//
//	                    sign  exponent  fraction  bias
//	float32             1     8         23        127
//	float16 (binary16)  1     5         10        15
//	bfloat16            1     8         7         127
//	float8 (e4m3)       1     4         3         7
//
// A float8 is a NaN if all bits except the sign are 1, and never infinite. Conversions round to
// nearest even.

// Bit patterns.
const (
	float32QuietBit = 1 << 22
	float32Infinity = 0xFF << 23

	float16Infinity = 0x7C00
	float16QuietBit = 0x0200
)

const (
	float32Bias    = 127
	float16Bias    = 15
	float8Bias     = 7
	biasDifference = float32Bias - float16Bias
	droppedBits    = 23 - 10 // of the fraction
)

// Float16Value converts a float16 to float32. A signaling NaN becomes quiet.
func Float16Value(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent := uint32(h>>10) & 0x1F
	fraction := uint32(h) & 0x3FF
	switch {
	case exponent == 0x1F && fraction != 0: // a NaN
		return math.Float32frombits(
			sign | float32Infinity | float32QuietBit | fraction<<droppedBits)
	case exponent == 0x1F:
		return math.Float32frombits(sign | float32Infinity)
	case exponent == 0: // zero or a subnormal number, a multiple of 2^-24
		magnitude := float32(fraction) * (1.0 / (1 << 24)) // exact
		return math.Float32frombits(sign | math.Float32bits(magnitude))
	}

	exponent += biasDifference
	return math.Float32frombits(sign | exponent<<23 | fraction<<droppedBits)
}

// Float16Bits rounds f to float16. Large numbers become infinite. NaNs become quiet.
func Float16Bits(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	magnitude := bits & 0x7FFFFFFF
	switch {
	case magnitude > float32Infinity: // a NaN
		return sign | float16Infinity | float16QuietBit | uint16(magnitude>>droppedBits&0x3FF)
	case magnitude >= (float32Bias+16)<<23: // 2^16 and above, including infinity
		return sign | float16Infinity
	case magnitude < (float32Bias-14)<<23: // below 2^-14, the smallest normal number
		// Subnormal float16s are multiples of 2^-24. Adding 0.5 rounds to such a multiple.
		sum := math.Float32frombits(magnitude) + 0.5
		return sign | uint16(math.Float32bits(sum)-math.Float32bits(0.5))
	}

	// To round to nearest even, add 0xFFF and the lowest kept bit, and drop 13 bits. A carry
	// increments the exponent, even to that of infinity.
	rebiased := magnitude - biasDifference<<23
	lowestKept := (rebiased >> droppedBits) & 1
	return sign | uint16((rebiased+0xFFF+lowestKept)>>droppedBits)
}

// BFloat16Value converts a bfloat16 to float32. A signaling NaN stays signaling.
func BFloat16Value(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// BFloat16Bits rounds f to bfloat16. Large numbers become infinite. NaNs become quiet.
func BFloat16Bits(f float32) uint16 {
	bits := math.Float32bits(f)
	isNaN := bits&0x7FFFFFFF > float32Infinity
	if isNaN {
		return uint16((bits | float32QuietBit) >> 16)
	}

	lowestKept := bits >> 16 & 1 // rounds as in Float16Bits
	return uint16((bits + 0x7FFF + lowestKept) >> 16)
}

// Float8Bits rounds f to float8. Magnitudes above 448, the largest float8, become 448, and all NaNs
// become 0x7f.
func Float8Bits(f float32) uint8 {
	const (
		largestFloat8  = 0x43e00000 // 448 as a float32
		smallestNormal = 0x3c800000 // 2^-6 as a float32
		unitsPerOne    = 512        // subnormal numbers are multiples of 1/512
		fractionBits   = 3
		rebias         = (float32Bias - float8Bias) << fractionBits
	)
	bits := math.Float32bits(f)
	sign := uint8(bits >> 24 & 0x80)
	magnitude := bits & 0x7FFFFFFF
	switch {
	case magnitude > float32Infinity: // a NaN
		return 0x7F
	case magnitude >= largestFloat8: // including infinity
		return sign | 0x7E
	case magnitude < smallestNormal:
		units := math.RoundToEven(math.Abs(float64(f)) * unitsPerOne)
		return sign | uint8(units) // 8 units are the smallest normal number.
	}

	// Round as in Float16Bits.
	lowestKept := magnitude >> 20 & 1
	rounded := (magnitude + 0x7FFFF + lowestKept) >> 20
	return sign | uint8(rounded-rebias)
}

package formula

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"symmem/driver"
	"symmem/internal/reduce"
)

// Input returns a rank's test input, which depends only on the arguments. Integers have random
// bits. Most floats cancel: the element is x on one rank, -x on another, and small on the other
// ranks. For example, the elements of four ranks are small1, x, small2 and -x. Their sum depends on
// the order of additions, because x+small rounds. Other floats have random magnitudes, random bits,
// or special values.
func Input(t driver.DataType, seed uint64, rank, ranks int, count int64) []byte {
	sharedRandom := rand.New(rand.NewPCG(seed, uint64(t))) // the same on all ranks
	rankRandom := rand.New(rand.NewPCG(seed, uint64(t)<<32|uint64(rank)+1))
	input := make([]byte, 0, count*int64(t.Size()))
	for range count {
		choice := sharedRandom.Uint64()
		kind := choice % 8
		switch {
		case !t.Float():
			input = AppendBits(input, t, rankRandom.Uint64())
		case kind < 5: // 0 to 4: values that cancel
			smallFactor := rankRandom.NormFloat64()
			value := cancelingValue(t, choice>>3, smallFactor, rank, ranks)
			input = AppendFloat(input, t, value)
		case kind == 5: // a random magnitude
			factor := rankRandom.NormFloat64()
			exponent := rankRandom.IntN(300) - 150
			input = AppendFloat(input, t, math.Ldexp(factor, exponent))
		case kind == 6: // random bits
			input = AppendBits(input, t, rankRandom.Uint64())
		default: // 7: a special value
			values := specialValues[t]
			input = AppendBits(input, t, values[rankRandom.IntN(len(values))])
		}
	}

	return input
}

// cancelingValue returns a large value on one rank, its negative on another, and a small value on
// the others. choice, a random number of 61 bits, determines the large value and the two ranks, so
// it must be the same on all ranks. smallFactor, also random, makes the small values differ.
func cancelingValue(
	t driver.DataType, choice uint64, smallFactor float64, rank, ranks int,
) float64 {
	fraction := 1 + float64(choice>>37)/(1<<24) // from 1 to 2: the upper 24 of 61 bits
	exponent := int(choice%6) + 8
	largeValue := math.Ldexp(fraction, exponent)
	positiveRank := int((choice >> 8) % uint64(ranks))
	otherRanks := uint64(max(1, ranks-1)) // at least 1, because it is a divisor
	distance := 1 + int((choice>>16)%otherRanks)
	negativeRank := (positiveRank + distance) % ranks
	switch rank {
	case positiveRank:
		return largeValue
	case negativeRank:
		return -largeValue
	default:
		return math.Ldexp(largeValue*smallFactor, -smallExponent[t])
	}
}

// smallExponent determines by type how small the small values are: large ones are about 2 to this
// power times larger.
var smallExponent = map[driver.DataType]int{
	driver.Float64: 20, driver.Float32: 10, driver.Float16: 18, driver.BFloat16: 20,
}

// SpecialInput returns a rank's input of special values. If count is large enough, ranks 0 to 2
// have all combinations of three special values. For example, if a type had 10 of them, element
// 123 would have the value with index 3 on rank 0, 2 on rank 1, and 1 on rank 2: the digits of 123
// from the last to the first.
//
// Rank n+3 has the values of rank n, shifted by one position in the list of special values.
func SpecialInput(t driver.DataType, rank int, count int64) []byte {
	values := specialValues[t]
	base := int64(len(values))
	shift := int64(rank / 3)
	input := make([]byte, 0, count*int64(t.Size()))
	for element := range count {
		digits := element
		for range rank % 3 { // remove the digits of lower ranks
			digits /= base
		}

		index := (digits + shift) % base
		input = AppendBits(input, t, values[index])
	}

	return input
}

// AppendFloat appends the bytes of v, rounded to the floating-point type t.
func AppendFloat(dst []byte, t driver.DataType, v float64) []byte {
	switch t {
	case driver.Float64:
		return AppendBits(dst, t, math.Float64bits(v))
	case driver.Float16:
		return AppendBits(dst, t, uint64(reduce.Float16Bits(float32(v))))
	case driver.BFloat16:
		return AppendBits(dst, t, uint64(reduce.BFloat16Bits(float32(v))))
	default:
		return AppendBits(dst, t, uint64(math.Float32bits(float32(v))))
	}
}

// AppendBits appends the low t.Size() bytes of bits, in native byte order.
func AppendBits(dst []byte, t driver.DataType, bits uint64) []byte {
	switch t.Size() {
	case 8:
		return binary.NativeEndian.AppendUint64(dst, bits)
	case 4:
		return binary.NativeEndian.AppendUint32(dst, uint32(bits))
	case 2:
		return binary.NativeEndian.AppendUint16(dst, uint16(bits))
	default:
		return append(dst, byte(bits))
	}
}

// specialValues maps each data type to the bits of its special values. Those of floats are zeros,
// the smallest and largest subnormal and normal numbers, one, infinities, and a quiet and a
// signaling NaN. Those of integers are the values at which arithmetic wraps.
var specialValues = map[driver.DataType][]uint64{
	driver.Float64: {
		0, 1 << 63, 1, 1<<63 | 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x8010000000000001,
		0x3FF0000000000000, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x7FF0000000000000,
		0xFFF0000000000000, 0x7FF8000000000001, 0xFFF0000000000001,
	},
	driver.Float32: {
		0, 1 << 31, 1, 1<<31 | 1, 0x007FFFFF, 0x00800000, 0x80800001, 0x3F800000, 0x7F7FFFFF,
		0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFF800001,
	},
	driver.Float16: {
		0, 1 << 15, 1, 1<<15 | 1, 0x03FF, 0x0400, 0x8401, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00,
		0x7E01, 0xFC01,
	},
	driver.BFloat16: {
		0, 1 << 15, 1, 1<<15 | 1, 0x007F, 0x0080, 0x8081, 0x3F80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80,
		0x7FC1, 0xFF81,
	},
	driver.Int8:   {0, 1, 0x7F, 0x80, 0x81, 0xFF},
	driver.Uint8:  {0, 1, 0x7F, 0x80, 0x81, 0xFF},
	driver.Int32:  {0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF},
	driver.Int64:  {0, 1, 1<<63 - 1, 1 << 63, 1<<63 | 1, 1<<64 - 1},
	driver.Int16:  {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF},
	driver.Uint16: {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF},
	driver.Uint32: {0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF},
	driver.Uint64: {0, 1, 1<<63 - 1, 1 << 63, 1<<63 | 1, 1<<64 - 1},
}

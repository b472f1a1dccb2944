package formula

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"symmem/driver"
	"symmem/internal/reduce"
)

// Kinds of random floats. Kinds below kindRandomMagnitude are canceling values.
const (
	kindBits            = 3
	kindCount           = 1 << kindBits
	kindRandomMagnitude = kindCount - 3
	kindRandomBits      = kindCount - 2
	kindSpecial         = kindCount - 1
)

// Input returns a rank's test input, which depends only on the arguments. Integers have random
// bits. Most floats cancel: the elements of four ranks can be small1, x, small2 and -x. Their sum
// depends on the order of additions, because x+small is rounded.
func Input(t driver.DataType, seed uint64, rank, ranks int, count int64) []byte {
	sharedRandom := rand.New(rand.NewPCG(seed, uint64(t))) // the same on all ranks
	rankSeed := uint64(t)<<32 + uint64(rank) + 1
	rankRandom := rand.New(rand.NewPCG(seed, rankSeed))
	input := make([]byte, 0, count*int64(t.Size()))
	for range count {
		if !t.Float() {
			input = AppendBits(input, t, rankRandom.Uint64())
			continue
		}

		kindAndBits := sharedRandom.Uint64()
		kind, sharedBits := kindAndBits%kindCount, kindAndBits>>kindBits
		switch kind {
		case kindRandomMagnitude:
			factor := rankRandom.NormFloat64()
			exponent := rankRandom.IntN(300) - 150
			input = AppendFloat(input, t, math.Ldexp(factor, exponent))
		case kindRandomBits:
			input = AppendBits(input, t, rankRandom.Uint64())
		case kindSpecial:
			values := specialValues[t]
			input = AppendBits(input, t, values[rankRandom.IntN(len(values))])
		default:
			smallFactor := rankRandom.NormFloat64()
			value := cancelingValue(t, sharedBits, smallFactor, rank, ranks)
			input = AppendFloat(input, t, value)
		}
	}

	return input
}

const sharedBitCount = 64 - kindBits

// cancelingValue returns a large value on one rank, its negative on another, and a small value on
// the others. sharedBits has sharedBitCount random bits, and must be the same on all ranks.
func cancelingValue(
	t driver.DataType, sharedBits uint64, smallFactor float64, rank, ranks int,
) float64 {
	upper24Bits := sharedBits >> (sharedBitCount - 24)
	significand := 1 + float64(upper24Bits)/(1<<24) // in [1, 2)
	exponent := 8 + int(sharedBits%6)
	largeValue := math.Ldexp(significand, exponent)
	positiveRank := int((sharedBits >> 8) % uint64(ranks))
	maxDistance := max(1, ranks-1) // as a divisor, not 0
	distance := 1 + int((sharedBits>>16)%uint64(maxDistance))
	negativeRank := (positiveRank + distance) % ranks
	switch rank {
	case positiveRank:
		return largeValue
	case negativeRank:
		return -largeValue
	default:
		return math.Ldexp(largeValue*smallFactor, smallExponents[t])
	}
}

// Small values are about 2^smallExponents[t] times the large value.
var smallExponents = map[driver.DataType]int{
	driver.Float64: -20, driver.Float32: -10, driver.Float16: -18, driver.BFloat16: -20,
}

// SpecialInput returns a rank's input of special values. If count is large enough, ranks 0 to 2 get
// all combinations of three values. Ranks 3 to 5 get the next value in specialValues.
func SpecialInput(t driver.DataType, rank int, count int64) []byte {
	values := specialValues[t]
	base := int64(len(values)) // an element's index in this base has a digit for each of 3 ranks
	const digitCount = 3
	placeValue := int64(1) // of this rank's digit
	for range rank % digitCount {
		placeValue *= base
	}

	shift := int64(rank / digitCount)
	input := make([]byte, 0, count*int64(t.Size()))
	for elementIndex := range count {
		digit := elementIndex / placeValue % base
		index := (digit + shift) % base
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
	default: // Float32
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

// specialValues lists the bits of special floats, and of integers near overflow.
var specialValues = map[driver.DataType][]uint64{
	driver.Float64: {
		0, 1 << 63, // zeros
		1, 1<<63 | 1, 0x000FFFFFFFFFFFFF, // subnormal numbers
		0x0010000000000000, 0x8010000000000001, // small normal numbers
		0x3FF0000000000000,                     // 1
		0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, // largest numbers
		0x7FF0000000000000, 0xFFF0000000000000, // infinities
		0x7FF8000000000001, 0xFFF0000000000001, // a quiet and a signaling NaN
	},
	// The other types list the same kinds of floats in the same order.
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
	driver.Int16:  {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF},
	driver.Int32:  {0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF},
	driver.Int64:  {0, 1, 1<<63 - 1, 1 << 63, 1<<63 | 1, 1<<64 - 1},
	driver.Uint8:  {0, 1, 0x7F, 0x80, 0x81, 0xFF},
	driver.Uint16: {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF},
	driver.Uint32: {0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF},
	driver.Uint64: {0, 1, 1<<63 - 1, 1 << 63, 1<<63 | 1, 1<<64 - 1},
}

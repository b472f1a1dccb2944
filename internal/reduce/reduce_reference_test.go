package reduce

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"unsafe"
)

// The reference computes one element at a time from its bits. It shares no arithmetic with the
// package: it rounds 16-bit floats by way of float64, and implements minimum and maximum
// separately.

var opNames = [OpCount]string{"sum", "prod", "min", "max", "band", "bor", "bxor"}

func (op Op) String() string { return opNames[op] }

func referenceElement(op Op, t DataType, sources []uint64, average bool) uint64 {
	if len(sources) == 1 {
		return sources[0]
	}

	switch {
	case t == Float64:
		return referenceFloat64(op, sources, average)
	case t.Float():
		return referenceFloat32(op, t, sources, average)
	}

	return referenceInteger(op, t, sources, average)
}

func referenceInteger(op Op, t DataType, sources []uint64, average bool) uint64 {
	acc := extend(t, sources[0])
	for _, source := range sources[1:] {
		x := extend(t, source)
		switch {
		case op == Sum:
			acc += x
		case op == Prod:
			acc *= x
		case op == Min && lessInteger(t, x, acc), op == Max && lessInteger(t, acc, x):
			acc = x
		case op == BAnd:
			acc &^= ^x
		case op == BOr:
			acc += x &^ acc
		case op == BXor:
			acc = acc&^x + x&^acc
		}

		acc = extend(t, uint64(acc))
	}

	switch {
	case average && t == Uint64:
		return uint64(acc) / uint64(len(sources))
	case average:
		acc /= int64(len(sources))
	}

	return uint64(acc)
}

func lessInteger(t DataType, a, b int64) bool {
	if t == Uint64 && a < 0 != (b < 0) {
		return b < 0
	}

	return a < b
}

// extend truncates v to the type and then sign-extends or zero-extends it. A Uint64 keeps its bits.
func extend(t DataType, v uint64) int64 {
	unused := 64 - 8*t.Size()
	if t == Uint8 || t == Uint16 || t == Uint32 {
		return int64(v << unused >> unused)
	}

	return int64(v<<unused) >> unused
}

// referenceFloat32 computes each operation in float64 and rounds the result to float32. For one
// operation on two float32, this gives the correctly rounded result.
func referenceFloat32(op Op, t DataType, sources []uint64, average bool) uint64 {
	fold := func(scale float32) float32 {
		acc := referenceWiden(t, sources[0]) * scale
		for _, source := range sources[1:] {
			x := referenceWiden(t, source) * scale
			acc = float32(referenceOperate(op, float64(acc), float64(x)))
		}

		return acc
	}
	acc, n := fold(1), float32(len(sources))
	if average && math.Abs(float64(acc)) <= math.MaxFloat32 {
		acc /= n
	} else if average {
		acc = fold(referenceScale(n)) / (n * referenceScale(n))
	}

	if math.IsNaN(float64(acc)) {
		return map[DataType]uint64{Float32: 0x7FFFFFFF, Float16: 0x7FFF, BFloat16: 0x7FFF}[t]
	}

	return referenceRound(t, acc)
}

func referenceFloat64(op Op, sources []uint64, average bool) uint64 {
	fold := func(scale float64) float64 {
		acc := math.Float64frombits(sources[0]) * scale
		for _, source := range sources[1:] {
			acc = referenceOperate(op, acc, math.Float64frombits(source)*scale)
		}

		return acc
	}
	acc, n := fold(1), float64(len(sources))
	if average && math.Abs(acc) <= math.MaxFloat64 {
		acc /= n
	} else if average {
		scale := float64(referenceScale(float32(n)))
		acc = fold(scale) / (n * scale)
	}

	if math.IsNaN(acc) {
		return 0x7FFFFFFFFFFFFFFF
	}

	return math.Float64bits(acc)
}

// referenceScaled adds one element of each source, multiplied by a factor.
func referenceScaled(t DataType, sources []uint64, factor float64) uint64 {
	if t == Float64 {
		acc := math.Float64frombits(sources[0]) * factor
		for _, source := range sources[1:] {
			acc += float64(math.Float64frombits(source) * factor)
		}

		if math.IsNaN(acc) {
			return 0x7FFFFFFFFFFFFFFF
		}

		return math.Float64bits(acc)
	}

	acc := referenceWiden(t, sources[0]) * float32(factor)
	for _, source := range sources[1:] {
		acc += float32(referenceWiden(t, source) * float32(factor))
	}

	if math.IsNaN(float64(acc)) {
		return map[DataType]uint64{Float32: 0x7FFFFFFF, Float16: 0x7FFF, BFloat16: 0x7FFF}[t]
	}

	return referenceRound(t, acc)
}

// referenceScale returns the largest power of two that is at most 1/n.
func referenceScale(n float32) float32 {
	scale := float32(1)
	for scale*n > 1 {
		scale /= 2
	}

	return scale
}

func referenceOperate(op Op, a, b float64) float64 {
	switch {
	case op == Sum:
		return a + b
	case op == Prod:
		return a * b
	case op == Min:
		return -referenceMaximum(-a, -b)
	}

	return referenceMaximum(a, b)
}

func referenceMaximum(a, b float64) float64 {
	switch {
	case math.IsNaN(a) || math.IsNaN(b):
		return math.NaN()
	case a > b || a == b && math.Signbit(b):
		return a
	}

	return b
}

func referenceWiden(t DataType, v uint64) float32 {
	switch {
	case t == BFloat16:
		return math.Float32frombits(uint32(v) << 16)
	case t == Float16:
		return referenceFloat16(uint16(v))
	}

	return math.Float32frombits(uint32(v))
}

func referenceFloat16(h uint16) float32 {
	exponent, mantissa := int(h>>10&31), float64(h&0x3FF)
	sign := uint32(h) >> 15 << 31
	switch {
	case exponent == 31 && mantissa != 0:
		return math.Float32frombits(sign | 0x7FC00000 | uint32(h&0x3FF)<<13)
	case exponent == 31:
		return math.Float32frombits(sign | 0x7F800000)
	case exponent == 0:
		mantissa = math.Ldexp(mantissa, -24)
	default:
		mantissa = math.Ldexp(1024+mantissa, exponent-25)
	}

	return float32(math.Copysign(mantissa, 1-2*float64(h>>15)))
}

func referenceRound(t DataType, f float32) uint64 {
	bits := math.Float32bits(f)
	switch {
	case t == Float16:
		return uint64(referenceNarrow(f, 10, -14, 15, uint16(bits>>13&0x3FF)))
	case t == BFloat16:
		return uint64(referenceNarrow(f, 7, -126, 127, uint16(bits>>16&0x7F)))
	}

	return uint64(bits)
}

// referenceNarrow rounds f to a format whose mantissa has width bits and whose exponents range
// from minExponent to maxExponent.
func referenceNarrow(f float32, width, minExponent, maxExponent int, payload uint16) uint16 {
	sign := uint16(math.Float32bits(f) >> 31 << 15)
	infinity := uint16(2*maxExponent+1) << width
	if math.IsNaN(float64(f)) {
		return sign | infinity | 1<<(width-1) | payload
	}

	magnitude := math.Abs(float64(f))
	if magnitude == 0 || math.IsInf(magnitude, 0) {
		return sign | uint16(min(magnitude, 1))*infinity
	}

	_, exponent := math.Frexp(magnitude)
	unit := max(exponent-1, minExponent) - width // exponent of the last place's value
	places := math.RoundToEven(math.Ldexp(magnitude, -unit))
	rounded := uint64(places) + uint64(unit+width-minExponent)<<width
	return sign | uint16(min(rounded, uint64(infinity)))
}

var specials = map[DataType][]uint64{
	Float32: {
		0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x3F800001,
		0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC01234, 0x7F800001,
		0xFFA0BEEF, 0x33800000, 0x4B800000,
	},
	Float64: {
		0, 1 << 63, 1, 1<<63 | 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000,
		0xBFF0000000000001, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x7FF0000000000000,
		0xFFF0000000000000, 0x7FF8000000000000, 0xFFF8000000012345, 0x7FF0000000000001,
		0xFFF4000000BEEF00, 0x3CA0000000000000,
	},
	Float16: {
		0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x3C01, 0x7BFF, 0xFBFF, 0x7C00,
		0xFC00, 0x7E00, 0xFE12, 0x7C01, 0xFD23, 0x1000,
	},
	BFloat16: {
		0, 0x8000, 1, 0x8001, 0x007F, 0x0080, 0x3F80, 0xBF80, 0x3F81, 0x7F7F, 0xFF7F, 0x7F80,
		0xFF80, 0x7FC0, 0xFFD2, 0x7F81, 0xFFA3, 0x3B80,
	},
	Int8:  {0, 1, 0xFF, 0x7F, 0x80, 0x81},
	Uint8: {0, 1, 0xFF, 0x7F, 0x80, 0x81},
	Int32: {0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x80000001, 0x10000},
	Int16: {0, 1, 0xFFFF, 0x7FFF, 0x8000, 0x8001, 0x100},
	Int64: {
		0, 1, 1<<64 - 1, 1<<63 - 1, 1 << 63, 1<<63 | 1, 1 << 32, 0xFFFFFFFF, 0xFFFFFFFF00000000,
	},
	Uint16: {0, 1, 0xFFFF, 0x7FFF, 0x8000, 0x8001, 0x100},
	Uint32: {0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x80000001, 0x10000},
	Uint64: {
		0, 1, 1<<64 - 1, 1<<63 - 1, 1 << 63, 1<<63 | 1, 1 << 32, 0xFFFFFFFF, 0xFFFFFFFF00000000,
	},
}

// draw returns a special value, random bits, or a value near 1, with which most operations must
// round.
func draw(r *rand.Rand, t DataType) uint64 {
	switch special := specials[t]; r.IntN(3) {
	case 0:
		return special[r.IntN(len(special))]
	case 1:
		return randomNearOne(r, t)
	}

	return r.Uint64()
}

// randomNearOne returns a float near 1 or -1, or an integer with random bits.
func randomNearOne(r *rand.Rand, t DataType) uint64 {
	f := math.Ldexp(r.NormFloat64(), r.IntN(12)-6)
	switch {
	case t == Float64:
		return math.Float64bits(f)
	case t.Float():
		return referenceRound(t, float32(f))
	}

	return r.Uint64()
}

func put(t DataType, buffer []byte, i int, v uint64) {
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], v)
	copy(buffer[i*t.Size():(i+1)*t.Size()], word[:])
}

func get(t DataType, buffer []byte, i int) uint64 {
	var word [8]byte
	copy(word[:], buffer[i*t.Size():(i+1)*t.Size()])
	return binary.LittleEndian.Uint64(word[:])
}

func reference(op Op, t DataType, sources [][]byte, average bool) []byte {
	return referenceBuffers(t, sources, func(elements []uint64) uint64 {
		return referenceElement(op, t, elements, average)
	})
}

func referenceSum(t DataType, sources [][]byte, factor float64) []byte {
	return referenceBuffers(t, sources, func(elements []uint64) uint64 {
		return referenceScaled(t, elements, factor)
	})
}

func referenceBuffers(
	t DataType, sources [][]byte, combine func(elements []uint64) uint64,
) []byte {
	out := make([]byte, len(sources[0]))
	elements := make([]uint64, len(sources))
	for i := range len(out) / t.Size() {
		for s, source := range sources {
			elements[s] = get(t, source, i)
		}

		put(t, out, i, combine(elements))
	}

	return out
}

func randomBuffers(r *rand.Rand, t DataType, sourceCount, count int) [][]byte {
	buffers := make([][]byte, sourceCount)
	for b := range buffers {
		buffers[b] = make([]byte, count*t.Size())
		for i := range count {
			put(t, buffers[b], i, draw(r, t))
		}
	}

	return buffers
}

// guarded is a buffer at a given distance from a line boundary, surrounded by bytes that must not
// change.
type guarded struct {
	all  []byte
	data []byte
}

const guardByte, guardBytes = 0xA5, 2 * lineBytes

func newGuarded(size, misalignment int) guarded {
	all := bytes.Repeat([]byte{guardByte}, size+3*guardBytes)
	start := guardBytes + misalignment
	start += int(-uintptr(unsafe.Pointer(&all[0])) % lineBytes)
	return guarded{all: all, data: all[start : start+size : start+size]}
}

func (g guarded) pointer() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(g.data)) }

func (g guarded) intact() bool {
	start := int(uintptr(g.pointer()) - uintptr(unsafe.Pointer(&g.all[0])))
	before, after := g.all[:start], g.all[start+len(g.data):]
	guard := []byte{guardByte}
	return bytes.Count(before, guard) == len(before) && bytes.Count(after, guard) == len(after)
}

package nccl

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"symmem/driver"
	"symmem/internal/reduce"
)

// Tests draw random input elements, and compare the errors of results with bounds that follow from
// the inputs. For example, two ranks add the float32 elements 1 and 2^-24. The exact sum 1+2^-24 is
// no float32 number. A result of 1 is near enough, because the error 2^-24 is within the bound.

// tileElements is the number of elements in a tile. The input of a rank consists of copies of its
// tile. The number is prime, so that data at a wrong offset is noticed: if the offset is wrong by a
// round number of bytes, the data differs.
const tileElements = 65521

// exponentRange is the range of exponents that drawElements scales with. Elements of up to 8 ranks
// can be added without an overflow.
type exponentRange struct {
	smallest int // exponent of the smallest denormal
	limit    int // largest exponent + 1
}

var exponentRanges = map[driver.DataType]exponentRange{
	driver.Float32:  {smallest: -149, limit: 110},
	driver.BFloat16: {smallest: -133, limit: 110},
	driver.Float16:  {smallest: -24, limit: 11},
}

// drawElements returns a tile of random elements. For types in exponentRanges, they include zeros,
// denormals and large numbers, with both signs. For other types, they consist of random bits.
func drawElements(t driver.DataType, random *rand.Rand) []byte {
	out := make([]byte, tileElements*t.Size())
	exponents, hasExponents := exponentRanges[t]
	if !hasExponents {
		for i := range out {
			out[i] = byte(random.Uint32())
		}

		return out
	}

	for i := range tileElements {
		v := random.Float64()*4 - 2 // between -2 and 2
		switch random.IntN(8) {
		case 0:
			exponent := exponents.smallest + random.IntN(exponents.limit-exponents.smallest)
			v = math.Ldexp(v, exponent)
		case 1:
			v = math.Copysign(0, v) // zero with the sign of v
		default: // most elements keep a value between -2 and 2
		}

		putElement(t, out, i, float32(v))
	}

	return out
}

// elementValue returns element i of in, which holds 16-bit or 32-bit floating-point numbers of
// type t.
func elementValue(t driver.DataType, in []byte, i int) float32 {
	switch t {
	case driver.Float16:
		return reduce.Float16Value(binary.LittleEndian.Uint16(in[2*i:]))
	case driver.BFloat16:
		return reduce.BFloat16Value(binary.LittleEndian.Uint16(in[2*i:]))
	default:
		return math.Float32frombits(binary.LittleEndian.Uint32(in[4*i:]))
	}
}

// putElement rounds v to type t and stores it as element i of out. See elementValue for the types.
func putElement(t driver.DataType, out []byte, i int, v float32) {
	switch t {
	case driver.Float16:
		binary.LittleEndian.PutUint16(out[2*i:], reduce.Float16Bits(v))
	case driver.BFloat16:
		binary.LittleEndian.PutUint16(out[2*i:], reduce.BFloat16Bits(v))
	default:
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(v))
	}
}

// reduceElement reduces one element of all inputs in float64. toFloat64 returns the value of this
// element in an input.
func reduceElement(op driver.ReduceOp, inputs [][]byte, toFloat64 func(in []byte) float64) float64 {
	total := toFloat64(inputs[0])
	for _, in := range inputs[1:] {
		next := toFloat64(in)
		switch op {
		case driver.Prod:
			total *= next
		case driver.Min:
			total = min(total, next)
		case driver.Max:
			total = max(total, next)
		default: // Sum or Avg
			total += next
		}
	}

	if op == driver.Avg {
		total /= float64(len(inputs))
	}

	return total
}

// The constants of the error bounds below. Rounding to a type adds half a unit in the last place,
// or half the smallest denormal if that is more.
const (
	halfUnit     = 0x1p-24  // half a unit in the last place of 1 in float32
	halfDenormal = 0x1p-150 // half the smallest denormal of float32
)

// rounding bounds the error of rounding x to a type. The error is at most relative*|x| or absolute,
// depending on which is more.
type rounding struct{ relative, absolute float64 }

var roundings = map[driver.DataType]rounding{
	driver.Float32:  {relative: halfUnit, absolute: halfDenormal},
	driver.Float16:  {relative: 0x1p-11, absolute: 0x1p-25},
	driver.BFloat16: {relative: 0x1p-8, absolute: 0x1p-134},
}

// errorBound returns the largest possible error of a result of type t. exact is the exact result,
// and magnitudes is the sum of the absolute values of the n input elements. op must not be Prod.
func errorBound(t driver.DataType, op driver.ReduceOp, n int, exact, magnitudes float64) float64 {
	bound := 0.0 // for Min and Max
	if op == driver.Sum || op == driver.Avg {
		// Higham, Accuracy and Stability of Numerical Algorithms, 4.2: the error of a sum of n numbers
		// in float32 is at most (n-1)u/(1-(n-1)u) times the sum of their absolute values, where u is
		// halfUnit.
		additions := float64(n - 1)
		sumError := additions * halfUnit / (1 - additions*halfUnit)
		bound = sumError * magnitudes
	}

	if op == driver.Avg { // the divided error of the sum, and the error of the division in float32
		bound = bound/float64(n) + halfUnit*(math.Abs(exact)+bound) + halfDenormal
	}

	toType := roundings[t]
	bound += toType.relative*(math.Abs(exact)+bound) + toType.absolute
	return bound
}

// checkNear checks that the error of each result of a reduction is within its errorBound.
//
// The exact result is computed in float64. Its error is 2^-29 times as large as an error in
// float32, so the bound is raised slightly.
func checkNear(t driver.DataType, op driver.ReduceOp, inputs [][]byte, results []byte) error {
	const raise = 1 + 0x1p-20
	for i := range tileElements {
		toFloat64 := func(in []byte) float64 { return float64(elementValue(t, in, i)) }
		exact := reduceElement(op, inputs, toFloat64)
		magnitudes := 0.0
		for _, in := range inputs {
			magnitudes += math.Abs(toFloat64(in))
		}

		bound := errorBound(t, op, len(inputs), exact, magnitudes)
		got := toFloat64(results)
		deviation := math.Abs(got - exact)
		isNear := deviation <= bound*raise // false if got is NaN
		if !isNear {
			return fmt.Errorf("%v of %v, element %d: got %g, want %g; the error is %g, the limit is %g",
				op, t, i, got, exact, deviation, bound)
		}
	}

	return nil
}

// fillWithTile fills dst with copies of a tile, starting at a byte offset in the tile.
func fillWithTile(dst, tile []byte, offset int64) {
	start := int(offset % int64(len(tile)))
	for len(dst) > 0 {
		n := copy(dst, tile[start:])
		dst = dst[n:]
		start = 0 // the next copy begins at the start of the tile
	}
}

// differingFraction returns the fraction of elements that differ between a and b, which have the
// same length.
func differingFraction(t driver.DataType, a, b []byte) float64 {
	size := t.Size()
	differingCount := 0
	for at := 0; at < len(a); at += size {
		if !slices.Equal(a[at:at+size], b[at:at+size]) {
			differingCount++
		}
	}

	return float64(differingCount*size) / float64(len(a))
}

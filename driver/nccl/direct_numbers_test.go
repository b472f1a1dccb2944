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

// tileElements is the number of elements in a tile. A rank's input repeats the tile. The number is
// prime, so that data from a wrong power-of-two offset differs.
const tileElements = 65521

// exponentRange contains the base-2 exponents of random elements. The smallest exponent belongs to
// the smallest denormal number. All exponents are below the limit, so that 8 ranks can add elements
// without overflow.
type exponentRange struct{ smallest, limit int }

var exponentRanges = map[driver.DataType]exponentRange{
	driver.Float32:  {smallest: -149, limit: 110},
	driver.BFloat16: {smallest: -133, limit: 110},
	driver.Float16:  {smallest: -24, limit: 11},
}

// drawElements returns a tile of random elements. In types with an exponentRange, they include
// signed zeros, denormals and large numbers.
func drawElements(t driver.DataType, random *rand.Rand) []byte {
	out := make([]byte, tileElements*t.Size())
	exponents, hasExponents := exponentRanges[t]
	if !hasExponents {
		for i := range out {
			out[i] = byte(random.Uint32())
		}

		return out
	}

	const scaledCase, zeroCase, cases = 0, 1, 8
	for i := range tileElements {
		v := random.Float64()*4 - 2 // in [-2, 2)
		switch random.IntN(cases) {
		case scaledCase:
			exponent := exponents.smallest + random.IntN(exponents.limit-exponents.smallest)
			v = math.Ldexp(v, exponent)
		case zeroCase:
			v = math.Copysign(0, v)
		default: // most values remain in [-2, 2)
		}

		putElement(t, out, i, float32(v))
	}

	return out
}

// elementValue returns element i of in. The type has an exponentRange.
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

// putElement rounds v to a type with an exponentRange.
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

// reduceElement reduces the elements that toFloat64 extracts from the inputs.
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

// Rounding errors of float32.
const (
	halfUnit     = 0x1p-24  // half a unit in the last place of 1
	halfDenormal = 0x1p-150 // half the smallest denormal
)

// rounding limits the error of rounding x to a type: max(relative*|x|, absolute).
type rounding struct{ relative, absolute float64 }

var roundings = map[driver.DataType]rounding{
	driver.Float32:  {relative: halfUnit, absolute: halfDenormal},
	driver.Float16:  {relative: 0x1p-11, absolute: 0x1p-25},
	driver.BFloat16: {relative: 0x1p-8, absolute: 0x1p-134},
}

// errorBound returns the largest possible error of a reduction other than Prod. magnitudes is the
// sum of the absolute values of the input elements.
func errorBound(
	t driver.DataType, op driver.ReduceOp, ranks int, exact, magnitudes float64,
) float64 {
	bound := 0.0 // for Min and Max
	if op == driver.Sum || op == driver.Avg {
		// Higham, Accuracy and Stability of Numerical Algorithms, 4.2.
		additions := float64(ranks - 1)
		relativeError := additions * halfUnit / (1 - additions*halfUnit)
		bound = relativeError * magnitudes
	}

	if op == driver.Avg {
		divisionError := halfUnit*(math.Abs(exact)+bound) + halfDenormal
		bound = bound/float64(ranks) + divisionError
	}

	rounding := roundings[t]
	roundingError := rounding.relative*(math.Abs(exact)+bound) + rounding.absolute
	return bound + roundingError
}

// checkNear compares the results of a reduction with float64 results. Errors up to errorBound are
// permitted.
func checkNear(t driver.DataType, op driver.ReduceOp, inputs [][]byte, results []byte) error {
	const tolerance = 1 + 0x1p-20 // more than enough for errors of the float64 results
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
		isNear := deviation <= bound*tolerance // false for NaN
		if !isNear {
			return fmt.Errorf("%v of %v, element %d: got %g, want %g; the error is %g, the limit is %g",
				op, t, i, got, exact, deviation, bound)
		}
	}

	return nil
}

// fillWithTile fills dst with repetitions of a tile, from the given byte offset in the repetitions.
func fillWithTile(dst, tile []byte, offset int64) {
	start := int(offset % int64(len(tile)))
	for len(dst) > 0 {
		n := copy(dst, tile[start:])
		dst = dst[n:]
		start = 0
	}
}

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

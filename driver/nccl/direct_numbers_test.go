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

// tileElements is the number of elements after which inputs repeat. It is a prime number, so data
// that is shifted by a round number of bytes always differs from the original data.
const tileElements = 65521

// drawElements returns one tile (tileElements elements) of random elements. For floating-point
// types other than float64, they have both signs, include denormals and zeros, and have all
// exponents for which sums of eight elements do not overflow. For other types, they are random
// bits.
func drawElements(t driver.DataType, random *rand.Rand) []byte {
	out := make([]byte, tileElements*t.Size())
	// The smallest exponent is that of the smallest denormal. The largest one is limit-1.
	exponents, isSupportedFloat := map[driver.DataType]struct{ smallest, limit int }{
		driver.Float32:  {smallest: -149, limit: 110},
		driver.BFloat16: {smallest: -133, limit: 110},
		driver.Float16:  {smallest: -24, limit: 11},
	}[t]
	if !isSupportedFloat {
		for i := range out {
			out[i] = byte(random.Uint32())
		}

		return out
	}

	for i := range tileElements {
		v := random.Float64()*4 - 2 // between -2 and 2
		switch random.IntN(8) {
		case 0:
			v = math.Ldexp(v, exponents.smallest+random.IntN(exponents.limit-exponents.smallest))
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

// reduceElement returns the reduction of one element of all inputs, computed in float64. toFloat64
// returns the value of this element in an input.
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

// checkNear checks that the results of a reduction are correct except for rounding. They may
// differ from results that are computed in float64 by at most an error bound.
//
// The error of a sum of n numbers in float32 is at most (n-1)u/(1-(n-1)u) times the sum of their
// magnitudes, where u is 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
//
// An average also has a division in float32. All results are then rounded to type t. Both steps
// add half a unit in the last place, or half the smallest denormal if that is more.
//
// The bound is raised slightly to account for the error of the float64 results, which is 2^-29
// times as large.
func checkNear(t driver.DataType, op driver.ReduceOp, inputs [][]byte, results []byte) error {
	const (
		u            = 0x1p-24  // half a unit in the last place of 1 in float32
		halfDenormal = 0x1p-150 // half the smallest denormal of float32
	)
	// The error of rounding x to t is at most relative * |x|, or absolute if that is more.
	rounding := map[driver.DataType]struct{ relative, absolute float64 }{
		driver.Float32:  {relative: u, absolute: halfDenormal},
		driver.Float16:  {relative: 0x1p-11, absolute: 0x1p-25},
		driver.BFloat16: {relative: 0x1p-8, absolute: 0x1p-134},
	}[t]
	additions := float64(len(inputs) - 1)
	sumError := additions * u / (1 - additions*u) // relative to the sum of the magnitudes
	for i := range tileElements {
		toFloat64 := func(in []byte) float64 { return float64(elementValue(t, in, i)) }
		exact := reduceElement(op, inputs, toFloat64)
		magnitudes := 0.0
		for _, in := range inputs {
			magnitudes += math.Abs(float64(elementValue(t, in, i)))
		}

		bound := 0.0
		if op == driver.Sum || op == driver.Avg {
			bound = sumError * magnitudes
		}

		if op == driver.Avg { // the divided error of the sum, and the error of the division
			bound = bound/float64(len(inputs)) + u*(math.Abs(exact)+bound) + halfDenormal
		}

		bound += rounding.relative*(math.Abs(exact)+bound) + rounding.absolute
		got := float64(elementValue(t, results, i))
		deviation := math.Abs(got - exact)
		isNear := deviation <= bound*(1+0x1p-20) // false if got is NaN
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
		dst, start = dst[n:], 0
	}
}

// differingFraction returns the fraction of elements that differ between a and b, which have the
// same length.
func differingFraction(t driver.DataType, a, b []byte) float64 {
	size, differingCount := t.Size(), 0
	for at := 0; at < len(a); at += size {
		if !slices.Equal(a[at:at+size], b[at:at+size]) {
			differingCount++
		}
	}

	return float64(differingCount*size) / float64(len(a))
}

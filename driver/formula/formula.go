// Package formula is the reference for reductions in deterministic groups. Tests and "symmem verify
// --deterministic" compare results with it, so its code is simple rather than fast.
//
// A formula is the order in which a reduction combines the ranks' elements, which affects sums of
// floats, because each addition rounds. For four ranks:
//
//	RankOrder     ((a + b) + c) + d
//	Tree          (a + b) + (c + d)
//	RoundedTree   as Tree, with each sum of 16-bit floats rounded to 16 bits
package formula

import (
	"math"
	"math/bits"

	"symmem/driver"
	"symmem/internal/reduce"
)

// Pair combines two elements. It rounds to nearest even, keeps subnormal numbers, and follows IEEE
// 754-2019 for minimum and maximum. Integers wrap around.
func Pair[T reduce.Number](op driver.ReduceOp, a, b T) T {
	return reduce.Combine(op.Combine(), a, b)
}

// combine combines one element of each rank. In trees, it calls round for the result of each pair.
func combine[T reduce.Number](f driver.Formula, op driver.ReduceOp, values []T, round func(T) T) T {
	isTree := f == driver.Tree || f == driver.RoundedTree
	if isTree && len(values) > 1 {
		middle := len(values) / 2
		left := combine(f, op, values[:middle], round)
		right := combine(f, op, values[middle:], round)
		return round(Pair(op, left, right))
	}

	combined := values[0]
	for _, next := range values[1:] {
		combined = Pair(op, combined, next)
	}

	return combined
}

// result reduces one element of each rank, and replaces a NaN with canonicalNaN.
func result[T reduce.Number](
	f driver.Formula, op driver.ReduceOp, values []T, round func(T) T, canonicalNaN T,
) T {
	combined := combine(f, op, values, round)
	if op.IsAverage() {
		combined = average(f, values, combined, round)
	}

	if math.IsNaN(float64(combined)) {
		return canonicalNaN
	}

	return combined
}

// average returns sum/len(values). If the sum may have overflowed, average adds scaled values.
func average[T reduce.Number](f driver.Formula, values []T, sum T, round func(T) T) T {
	count := T(len(values))
	isFinite := !math.IsNaN(float64(sum)) && !math.IsInf(float64(sum), 0)
	if isFinite {
		return sum / count
	}

	log2OfRanks := bits.Len(uint(len(values) - 1)) // rounded up
	scale := T(math.Ldexp(1, -log2OfRanks))        // 1/2 for 2 ranks, 1/4 for 3 or 4
	scaledValues := make([]T, len(values))
	for i, v := range values {
		scaledValues[i] = v * scale
	}

	return combine(f, driver.Sum, scaledValues, round) / (count * scale)
}

// Factor returns the factor by which Reduce multiplies elements, or 0 if op has none.
func Factor(op driver.ReduceOp) float64 {
	if op.HasFactor() {
		return 0.75 // arbitrary, but exact in every float type
	}

	return 0
}

func multiplyByFactor[T reduce.Number](op driver.ReduceOp, value T) T {
	if op.HasFactor() {
		return value * T(Factor(op))
	}

	return value
}

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

// combine combines one element of each rank. Only trees call round, with the result of each pair.
func combine[T reduce.Number](f driver.Formula, op driver.ReduceOp, values []T, round func(T) T) T {
	isTree := f == driver.Tree || f == driver.RoundedTree
	if isTree && len(values) > 1 {
		half := len(values) / 2
		left := combine(f, op, values[:half], round)
		right := combine(f, op, values[half:], round)
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

// average returns sum/len(values). If the sum may have overflowed, it adds scaled values instead.
func average[T reduce.Number](f driver.Formula, values []T, sum T, round func(T) T) T {
	count := T(len(values))
	isFinite := !math.IsNaN(float64(sum)) && !math.IsInf(float64(sum), 0)
	if isFinite {
		return sum / count
	}

	log2Ceil := bits.Len(uint(len(values) - 1))
	scale := T(math.Ldexp(1, -log2Ceil)) // 1/2 for 2 ranks, 1/4 for 3 or 4
	scaledValues := make([]T, len(values))
	for r := range values {
		scaledValues[r] = values[r] * scale
	}

	return combine(f, driver.Sum, scaledValues, round) / (count * scale)
}

// Factor returns the factor by which Reduce multiplies elements, or 0 if op has none. Its products
// with small integers are exact in every float type.
func Factor(op driver.ReduceOp) float64 {
	if op.HasFactor() {
		return 0.75
	}

	return 0
}

func multiplyByFactor[T reduce.Number](op driver.ReduceOp, value T) T {
	if op.HasFactor() {
		return value * T(Factor(op))
	}

	return value
}

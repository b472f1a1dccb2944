// Package formula defines the result of a reduction in a deterministic group, one element at a
// time. Tests and "symmem verify --deterministic" compare results with it, so its code is simple
// rather than fast.
//
// A formula is the order in which a reduction combines the ranks' elements. Sums of floats depend
// on it, because each addition rounds. For four ranks:
//
//	RankOrder     ((a + b) + c) + d
//	Tree          (a + b) + (c + d)
//	RoundedTree   the same, but each sum of 16-bit floats is rounded to 16 bits
package formula

import (
	"math"
	"math/bits"

	"symmem/driver"
	"symmem/internal/reduce"
)

// Pair combines two elements. It rounds to nearest even, keeps subnormal numbers, and computes
// minimum and maximum as in IEEE 754-2019. Integers wrap around.
func Pair[T reduce.Number](op driver.ReduceOp, a, b T) T {
	return reduce.Combine(op.Combine(), a, b)
}

// combine combines one element of each rank, in group order. In a tree, it calls round with the
// result of each pair. In the order of ranks, it does not call round.
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

// result returns the result of a reduction for one element of each rank. Each NaN becomes
// canonicalNaN.
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

// average returns the average of values, whose sum is given. If the sum is not finite, average adds
// smaller values instead, so that finite values do not overflow: with 4 values, a quarter of each.
func average[T reduce.Number](f driver.Formula, values []T, sum T, round func(T) T) T {
	count := T(len(values))
	isFinite := !math.IsNaN(float64(sum)) && !math.IsInf(float64(sum), 0)
	if isFinite {
		return sum / count
	}

	scale := T(math.Ldexp(1, -bits.Len(uint(len(values)-1)))) // 1/2 for 2 ranks, 1/4 for 3 and 4
	scaledValues := make([]T, len(values))
	for r := range values {
		scaledValues[r] = values[r] * scale
	}

	return combine(f, driver.Sum, scaledValues, round) / (count * scale)
}

// Factor returns the factor by which Reduce multiplies elements, or 0 if the reduction has none.
// Its products with small integers are exact in every type.
func Factor(op driver.ReduceOp) float64 {
	if op.HasFactor() {
		return 0.75
	}

	return 0
}

// multiplyByFactor multiplies an element by the factor of the reduction, if it has one.
func multiplyByFactor[T reduce.Number](op driver.ReduceOp, value T) T {
	if op.HasFactor() {
		return value * T(Factor(op))
	}

	return value
}

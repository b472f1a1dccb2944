// Package formula defines the result of a reduction in a deterministic group, one element at a
// time. Tests and "symmem verify --deterministic" compare results with it, so its code is simple
// rather than fast. docs/reference/deterministic.md describes the formulas (the orders in which
// elements are combined).
package formula

import (
	"math"
	"math/bits"

	"symmem/driver"
	"symmem/internal/reduce"
)

// combine combines one element of each rank, in group order. In a tree, it rounds every partial
// result.
func combine[T reduce.Number](f driver.Formula, op driver.ReduceOp, values []T, round func(T) T) T {
	if half := len(values) / 2; half > 0 && (f == driver.Tree || f == driver.RoundedTree) {
		left, right := combine(f, op, values[:half], round), combine(f, op, values[half:], round)
		return round(Pair(op, left, right))
	}

	acc := values[0]
	for _, next := range values[1:] {
		acc = Pair(op, acc, next)
	}

	return acc
}

// Pair combines two elements. It rounds to nearest even, keeps subnormal numbers, and computes
// minimum and maximum as in IEEE 754-2019. Integers wrap around.
func Pair[T reduce.Number](op driver.ReduceOp, a, b T) T {
	return reduce.Combine(op.Combine(), a, b)
}

// Factor returns the factor that Reduce uses, or 0. Its products with small integers are exact in
// every type.
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

func result[T reduce.Number](
	f driver.Formula, op driver.ReduceOp, values []T, round func(T) T, canonicalNaN T,
) T {
	acc := combine(f, op, values, round)
	if op.IsAverage() {
		acc = average(f, values, acc, round)
	}

	if math.IsNaN(float64(acc)) {
		return canonicalNaN
	}

	return acc
}

// If the sum is not finite, average scales the elements down first, so that finite elements do not
// overflow.
func average[T reduce.Number](f driver.Formula, values []T, sum T, round func(T) T) T {
	n := T(len(values))
	if !math.IsNaN(float64(sum)) && !math.IsInf(float64(sum), 0) {
		return sum / n
	}

	scale := T(math.Ldexp(1, -bits.Len(uint(len(values)-1)))) // 1/2 for 2 ranks, 1/4 for 3 and 4
	scaledValues := make([]T, len(values))
	for r := range values {
		scaledValues[r] = values[r] * scale
	}

	return combine(f, driver.Sum, scaledValues, round) / (n * scale)
}

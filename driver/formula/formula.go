// Package formula defines what a reduction of a deterministic group computes, one element at a
// time. Tests and symmem verify --deterministic compare results with it, so it is written to be
// read, not to be fast. docs/reference/deterministic.md describes it.
package formula

import (
	"math"
	"math/bits"

	"symmem/driver"
	"symmem/internal/reduce"
)

// combine combines one element of each rank, in the order of the group. round rounds to the type of
// the elements where every sum of a tree is rounded, and else returns what it is given.
func combine[T reduce.Number](f driver.Formula, op driver.ReduceOp, x []T, round func(T) T) T {
	if half := len(x) / 2; half > 0 && (f == driver.Tree || f == driver.RoundedTree) {
		return round(Pair(op, combine(f, op, x[:half], round), combine(f, op, x[half:], round)))
	}
	acc := x[0]
	for _, next := range x[1:] {
		acc = Pair(op, acc, next)
	}
	return acc
}

// Pair combines two elements: rounded to nearest even, subnormal numbers kept, minimum and maximum
// of IEEE 754-2019. Integers wrap. An average still has to be divided.
func Pair[T reduce.Number](op driver.ReduceOp, a, b T) T {
	return reduce.Combine(op.Combine(), a, b)
}

// result computes the whole formula, except for the last rounding of 16-bit floats.
func result[T reduce.Number](
	f driver.Formula, op driver.ReduceOp, x []T, round func(T) T, nan T,
) T {
	acc := combine(f, op, x, round)
	if op.Divides() {
		acc = average(f, x, acc, round)
	}
	if math.IsNaN(float64(acc)) {
		return nan
	}
	return acc
}

// average divides a sum by the number of ranks. A sum that is not finite is computed once more,
// from elements that are scaled by a power of two so that no sum of finite ones overflows.
func average[T reduce.Number](f driver.Formula, x []T, sum T, round func(T) T) T {
	n := T(len(x))
	if !math.IsNaN(float64(sum)) && !math.IsInf(float64(sum), 0) {
		return sum / n
	}
	scale := T(math.Ldexp(1, -bits.Len(uint(len(x)-1)))) // 1/2 for 2 ranks, 1/4 for 3 and 4
	scaled := make([]T, len(x))
	for r := range x {
		scaled[r] = x[r] * scale
	}
	return combine(f, driver.Sum, scaled, round) / (n * scale)
}

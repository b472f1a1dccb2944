package reduce

import (
	"math"
	"math/bits"
	"unsafe"
)

// division describes the step between accumulation and rounding: none, or the multiplication or
// division of an average. Kernels depend on its layout.
type division struct {
	value uint64 // the result of operand or, for a ScaledSum, the factor
	// stopped is the byte offset of a block with an infinite or NaN sum. The kernel returns before
	// it stores any byte of this block.
	stopped int
	mode    finalMode
}

type finalMode uint8

// The flags of modes, which the kernels test. With finalCheck, kernels stop at a block with an
// infinite or NaN sum.
const (
	finalNone     finalMode = 0
	finalMultiply finalMode = 2
	finalDivide   finalMode = 4
	finalCheck    finalMode = 8
)

// newDivision returns the division for an average. For a power of two it multiplies by the
// reciprocal, which is faster and, because the reciprocal is exact, gives the same result.
func newDivision(t DataType, terms *terms) division {
	n := len(terms.srcs)
	f, mode := float64(n), finalDivide
	if n&(n-1) == 0 {
		f, mode = 1/f, finalMultiply
	}
	if t != Float16 || terms.rounded { // other sums are in float32 and do not overflow
		mode |= finalCheck
	}
	return division{mode: mode, value: operand(t, f)}
}

// operand returns the bits of a number in the type in which elements of type t are combined.
func operand(t DataType, f float64) uint64 {
	if t == Float64 {
		return math.Float64bits(f)
	}
	return uint64(math.Float32bits(float32(f)))
}

func number[T float32 | float64](bits uint64) T {
	var zero T
	if unsafe.Sizeof(zero) == 8 {
		return T(math.Float64frombits(bits))
	}
	return T(math.Float32frombits(uint32(bits)))
}

// terms holds the elements that an average combines, one per source.
type terms struct {
	t             DataType
	srcs          []unsafe.Pointer
	first         int // index in srcs of the first element of the job
	tree, rounded bool
}

// mean divides the sum of the terms with index i. It computes an infinite or NaN sum again from
// scaled terms, which do not overflow.
func mean[T float32 | float64](terms *terms, sum T, i int) T {
	n := T(len(terms.srcs))
	if difference := sum - sum; difference == 0 { //nolint:gocritic // Not so if infinite or NaN.
		return sum / n
	}
	scale := 1 / T(int(1)<<bits.Len(uint(len(terms.srcs)-1)))
	return scaledSum(terms, terms.srcs, terms.first+i, scale) / (n * scale)
}

// scaledSum adds element i of the given sources, multiplied by scale.
func scaledSum[T float32 | float64](terms *terms, srcs []unsafe.Pointer, i int, scale T) T {
	if half := len(srcs) / 2; terms.tree && half > 0 {
		left := scaledSum(terms, srcs[:half], i, scale)
		sum := left + scaledSum(terms, srcs[half:], i, scale)
		if terms.rounded {
			return rounded(terms.t, sum)
		}
		return sum
	}
	var sum T
	for r, src := range srcs {
		// The conversion prevents a fused addition.
		product := T(value[T](terms.t, src, i) * scale) //nolint:unconvert // See above.
		if r == 0 {
			sum = product
		} else {
			sum += product
		}
	}
	return sum
}

// value returns element i of a source.
func value[T float32 | float64](t DataType, src unsafe.Pointer, i int) T {
	at := unsafe.Add(src, i*t.Size())
	switch t {
	case Float16:
		return T(Float16Value(*(*uint16)(at)))
	case BFloat16:
		return T(BFloat16Value(*(*uint16)(at)))
	default:
		return *(*T)(at)
	}
}

// rounded rounds v to t if that is a 16-bit type.
func rounded[T float32 | float64](t DataType, v T) T {
	switch t {
	case Float16:
		return T(Float16Value(Float16Bits(float32(v))))
	case BFloat16:
		return T(BFloat16Value(BFloat16Bits(float32(v))))
	default:
		return v
	}
}

// averageIntegers averages in blocks that fit into the L1 cache, so that the sums are still in the
// cache when they are divided.
func averageIntegers[T integer](j job, size int) {
	const piece = 4 << 10
	dsts := j.dsts
	j.dsts = dsts[:1]
	for from := 0; from < size; from += piece {
		to := min(from+piece, size)
		j.walk(from, to, false)
		first := unsafe.Add(dsts[0], from)
		divideIntegers(first, to-from, T(len(j.terms.srcs)))
		for _, dst := range dsts[1:] {
			Copy(unsafe.Add(dst, from), first, to-from, Hint{})
		}
	}
}

// divideIntegers divides in place and truncates. The divisor is positive, so no quotient overflows.
func divideIntegers[T integer](p unsafe.Pointer, size int, divisor T) {
	all := elements[T](p, 0, size)
	for i, x := range all {
		all[i] = x / divisor
	}
}

package reduce

import (
	"math"
	"math/bits"
	"unsafe"
)

// division describes how a sum becomes an average before rounding. Kernels depend on its layout.
type division struct {
	value uint64 // bits of the divisor or factor, from operandBits
	// stoppedAt is the byte offset of the first block that has an infinite or NaN sum. The kernel
	// sets it and returns before it stores any byte of the block.
	stoppedAt int
	mode      divisionMode
}

type divisionMode uint8

// Kernels test these flags. With stopAtInfinity, they stop at a block with an infinite or NaN sum.
const (
	noDivision     divisionMode = 0
	multiplySum    divisionMode = 2
	divideSum      divisionMode = 4
	stopAtInfinity divisionMode = 8
)

// newDivision returns the division for an average. For a power of two, it multiplies by the
// reciprocal, which is exact and faster.
func newDivision(t DataType, terms *terms) division {
	n := len(terms.srcs)
	f, mode := float64(n), divideSum
	if n&(n-1) == 0 {
		f, mode = 1/f, multiplySum
	}
	if t != Float16 || terms.rounded { // sums of float16 in float32 do not overflow
		mode |= stopAtInfinity
	}
	return division{mode: mode, value: operandBits(t, f)}
}

// operandBits returns the bits of f, converted to the type in which elements of type t are
// combined.
func operandBits(t DataType, f float64) uint64 {
	if t == Float64 {
		return math.Float64bits(f)
	}
	return uint64(math.Float32bits(float32(f)))
}

func fromBits[T float32 | float64](bits uint64) T {
	var zero T
	if unsafe.Sizeof(zero) == 8 {
		return T(math.Float64frombits(bits))
	}
	return T(math.Float32frombits(uint32(bits)))
}

// terms holds the elements, one per source, of an average.
type terms struct {
	t             DataType
	srcs          []unsafe.Pointer
	first         int // index of the job's first element in each source
	tree, rounded bool
}

// mean returns the mean of the terms with index i, given their sum. If the sum is infinite or a
// NaN, mean adds the terms again after scaling them down, so that they do not overflow.
func mean[T float32 | float64](terms *terms, sum T, i int) T {
	n := T(len(terms.srcs))
	if difference := sum - sum; difference == 0 { //nolint:gocritic // It is NaN unless sum is finite.
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

func value[T float32 | float64](t DataType, src unsafe.Pointer, i int) T {
	p := unsafe.Add(src, i*t.Size())
	switch t {
	case Float16:
		return T(Float16Value(*(*uint16)(p)))
	case BFloat16:
		return T(BFloat16Value(*(*uint16)(p)))
	default:
		return *(*T)(p)
	}
}

// rounded rounds v to t if t is a 16-bit type.
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

// averageIntegers divides the sums of a piece while they are in the L1 cache.
func averageIntegers[T integer](j job, size int) {
	const piece = 4 << 10
	dsts := j.dsts
	j.dsts = dsts[:1]
	for from := 0; from < size; from += piece {
		to := min(from+piece, size)
		j.reduceStrides(from, to, false)
		first := unsafe.Add(dsts[0], from)
		divideIntegers(first, to-from, T(len(j.terms.srcs)))
		for _, dst := range dsts[1:] {
			Copy(unsafe.Add(dst, from), first, to-from, Hint{})
		}
	}
}

// divideIntegers cannot overflow, because the divisor is positive.
func divideIntegers[T integer](p unsafe.Pointer, size int, divisor T) {
	all := elements[T](p, 0, size)
	for i, x := range all {
		all[i] = x / divisor
	}
}

package reduce

import (
	"math"
	"math/bits"
	"unsafe"
)

// division describes how a kernel divides or multiplies a sum before it rounds the result. The
// assembly depends on its layout.
type division struct {
	operand uint64 // bits of the divisor or factor, from operandBits
	// stopOffset is the byte offset of the first block that has an infinite or NaN sum. The kernel
	// sets it and returns before it stores any byte of the block.
	stopOffset int
	mode       divisionMode
}

type divisionMode uint8

// The modes are flags of kernels. With stopAtInfinity, which is combined with multiplySum or
// divideSum, a kernel stops at a block with an infinite or NaN sum.
const (
	noDivision     divisionMode = 0
	multiplySum    divisionMode = 2
	divideSum      divisionMode = 4
	stopAtInfinity divisionMode = 8
)

// newDivision returns the division of an average. If the number of sources is a power of two, it
// multiplies by the reciprocal, which is exact and faster.
func newDivision(t DataType, terms *averageTerms) division {
	n := len(terms.srcs)
	operand, mode := float64(n), divideSum
	isPowerOfTwo := n&(n-1) == 0
	if isPowerOfTwo {
		operand, mode = 1/operand, multiplySum
	}
	// Sums of Float16 elements do not overflow in float32 unless they are rounded to Float16.
	if t != Float16 || terms.isRounded {
		mode |= stopAtInfinity
	}
	return division{mode: mode, operand: operandBits(t, operand)}
}

// operandBits returns the bits of f as a float64 or float32, the type in which elements of type t
// are combined.
func operandBits(t DataType, f float64) uint64 {
	if t == Float64 {
		return math.Float64bits(f)
	}
	return uint64(math.Float32bits(float32(f)))
}

// operandOf returns the operand whose bits operandBits returned.
func operandOf[T float32 | float64](bits uint64) T {
	var zero T
	if unsafe.Sizeof(zero) == 8 {
		return T(math.Float64frombits(bits))
	}
	return T(math.Float32frombits(uint32(bits)))
}

// averageTerms describes the sources of an average, from which meanOf can compute sums again.
type averageTerms struct {
	t         DataType
	srcs      []unsafe.Pointer
	first     int  // index of the job's first element in each source
	isTree    bool // sums are computed pairwise, in a binary tree of the sources
	isRounded bool // each sum of a tree is rounded to t
}

// meanOf returns the mean of the sources' elements i, given their sum. If the sum is infinite or a
// NaN, it scales the elements down and adds them again, so that they do not overflow.
func meanOf[T float32 | float64](terms *averageTerms, sum T, i int) T {
	n := T(len(terms.srcs))
	if difference := sum - sum; difference == 0 { //nolint:gocritic // It is NaN unless sum is finite.
		return sum / n
	}
	// The scale is 1 divided by the next power of two that is at least n.
	scale := 1 / T(int(1)<<bits.Len(uint(len(terms.srcs)-1)))
	return scaledSum(terms, terms.srcs, terms.first+i, scale) / (n * scale)
}

// scaledSum returns the sum of the sources' elements with index i, each multiplied by scale. It
// adds them in the order of the original sum.
func scaledSum[T float32 | float64](
	terms *averageTerms, srcs []unsafe.Pointer, i int, scale T,
) T {
	if half := len(srcs) / 2; terms.isTree && half > 0 {
		left := scaledSum(terms, srcs[:half], i, scale)
		sum := left + scaledSum(terms, srcs[half:], i, scale)
		if terms.isRounded {
			return roundTo(terms.t, sum)
		}
		return sum
	}
	var sum T
	for r, src := range srcs {
		// The conversion prevents a fused addition.
		product := T(loadElement[T](terms.t, src, i) * scale) //nolint:unconvert // See above.
		if r == 0 {
			sum = product
		} else {
			sum += product
		}
	}
	return sum
}

// loadElement returns element i of a source with elements of type t.
func loadElement[T float32 | float64](t DataType, src unsafe.Pointer, i int) T {
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

// roundTo rounds v to the nearest value of type t.
func roundTo[T float32 | float64](t DataType, v T) T {
	switch t {
	case Float16:
		return T(Float16Value(Float16Bits(float32(v))))
	case BFloat16:
		return T(BFloat16Value(BFloat16Bits(float32(v))))
	default:
		return v
	}
}

// averageIntegers averages the first size bytes. It divides the sums of each block while they are
// in the L1 cache.
func averageIntegers[T integer](j job, size int) {
	const blockBytes = 4 << 10
	dsts := j.dsts
	j.dsts = dsts[:1]
	for from := 0; from < size; from += blockBytes {
		to := min(from+blockBytes, size)
		j.reduceStrides(from, to, false) // without streaming, because the block is read again
		first := unsafe.Add(dsts[0], from)
		divideIntegers(first, to-from, T(len(j.terms.srcs)))
		for _, dst := range dsts[1:] {
			Copy(unsafe.Add(dst, from), first, to-from, Hint{})
		}
	}
}

// divideIntegers divides the integers in size bytes at p. The divisor is positive, so that no
// quotient overflows.
func divideIntegers[T integer](p unsafe.Pointer, size int, divisor T) {
	values := elements[T](p, 0, size)
	for i, x := range values {
		values[i] = x / divisor
	}
}

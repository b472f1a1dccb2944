package reduce

import (
	"math"
	"math/bits"
	"unsafe"
)

// A kernel, which is assembly for a range of elements, stops when the sum of an average overflows.
// Go code then computes the mean from scaled elements: for three sources, it multiplies each
// element by 1/4, and divides the sum of the products by 3/4.

// averageTerms describes the elements of an average, so that Go code can add them again.
type averageTerms struct {
	t         DataType // of srcs
	srcs      []unsafe.Pointer
	first     int  // index in the sources of the job's element 0
	isTree    bool // the sums follow a binary tree
	isRounded bool // each sum of a tree is rounded to t
}

// division describes how a kernel divides or multiplies a sum before it rounds the result. The
// assembly depends on its layout.
type division struct {
	operand uint64 // divisor or factor, from operandBits
	// stopOffset is the offset in bytes of the block at which the kernel has stopped, without storing
	// any of it. A kernel that does not stop leaves stopOffset unchanged.
	stopOffset int
	mode       divisionMode
}

type divisionMode uint8

// The modes are flags of kernels. Flag 1 is flagStream.
const (
	noDivision  divisionMode = 0
	multiplySum divisionMode = 2
	divideSum   divisionMode = 4
	// stopAtInfinity stops the kernel at a block with an infinite or NaN sum. It is combined with
	// multiplySum or divideSum.
	stopAtInfinity divisionMode = 8
)

// newDivision returns the division of an average. If the number of sources is a power of two,
// multiplication by the reciprocal is exact and faster.
func newDivision(t DataType, terms *averageTerms) division {
	n := len(terms.srcs)
	operand, mode := float64(n), divideSum
	isPowerOfTwo := n&(n-1) == 0
	if isPowerOfTwo {
		operand, mode = 1/operand, multiplySum
	}

	// Sums of Float16 elements fit into float32, but not into Float16.
	canOverflow := t != Float16 || terms.isRounded
	if canOverflow {
		mode |= stopAtInfinity
	}

	return division{mode: mode, operand: operandBits(t, operand)}
}

// operandBits returns the bits of f in float64 or float32, the type that combines elements of t.
func operandBits(t DataType, f float64) uint64 {
	if t == Float64 {
		return math.Float64bits(f)
	}

	return uint64(math.Float32bits(float32(f)))
}

// operandOf is the inverse of operandBits.
func operandOf[T float32 | float64](bits uint64) T {
	var zero T
	if unsafe.Sizeof(zero) == 8 {
		return T(math.Float64frombits(bits))
	}

	return T(math.Float32frombits(uint32(bits)))
}

// meanOf returns the mean of element i of the job, given its sum. If the sum is infinite or a NaN,
// it adds the elements again, scaled down.
func meanOf[T float32 | float64](terms *averageTerms, sum T, i int) T {
	n := T(len(terms.srcs))
	difference := sum - sum //nolint:gocritic // It is NaN unless sum is finite.
	isFinite := difference == 0
	if isFinite {
		return sum / n
	}

	// With a power of two of at least n, sums of scaled elements do not overflow.
	powerOfTwo := 1 << bits.Len(uint(len(terms.srcs)-1))
	scale := 1 / T(powerOfTwo)
	return scaledSum(terms, terms.srcs, terms.first+i, scale) / (n * scale)
}

// scaledSum adds element i of all srcs, each multiplied by scale, in the order of the original sum.
func scaledSum[T float32 | float64](
	terms *averageTerms, srcs []unsafe.Pointer, i int, scale T,
) T {
	if terms.isTree && len(srcs) > 1 {
		half := len(srcs) / 2
		left := scaledSum(terms, srcs[:half], i, scale)
		right := scaledSum(terms, srcs[half:], i, scale)
		if terms.isRounded {
			return roundTo(terms.t, left+right)
		}

		return left + right
	}

	var sum T
	for index, src := range srcs {
		// The conversion prevents a fused addition, which would not round the product.
		product := T(loadElement[T](terms.t, src, i) * scale) //nolint:unconvert // See above.
		if index == 0 {
			sum = product // not 0+product, which would turn -0 into +0
		} else {
			sum += product
		}
	}

	return sum
}

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

// averageIntegers averages the first size bytes in blocks that fit into the L1 cache. It divides
// the sums of a block in the first destination, and copies the block to the others.
func averageIntegers[T integer](j job, size int) {
	const blockBytes = 4 << 10
	divisor := T(len(j.terms.srcs))
	firstDst, otherDsts := j.dsts[0], j.dsts[1:]
	j.dsts = j.dsts[:1] // j is a copy of the caller's job
	for from := 0; from < size; from += blockBytes {
		to := min(from+blockBytes, size)
		j.reduceStrides(from, to, cached) // because the block is read again
		block := unsafe.Add(firstDst, from)
		divideIntegers(block, to-from, divisor)
		for _, dst := range otherDsts {
			Copy(unsafe.Add(dst, from), block, to-from, Hint{})
		}
	}
}

func divideIntegers[T integer](p unsafe.Pointer, size int, divisor T) {
	values := elements[T](p, 0, size)
	for i, x := range values {
		values[i] = x / divisor
	}
}

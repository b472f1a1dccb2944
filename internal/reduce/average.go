package reduce

import (
	"math"
	"math/bits"
	"unsafe"
)

// division describes how a kernel (assembly that reduces a range of elements) divides or multiplies
// a sum before it rounds the result. The assembly depends on its layout.
type division struct {
	operand uint64 // bits of the divisor or factor, from operandBits
	// stopOffset is the byte offset of the first block that has an infinite or NaN sum. The kernel
	// sets it and returns before it stores any byte of the block.
	stopOffset int
	mode       divisionMode
}

type divisionMode uint8

// The modes are flags of kernels. Flag 1 is flagStream.
const (
	noDivision  divisionMode = 0
	multiplySum divisionMode = 2
	divideSum   divisionMode = 4
	// stopAtInfinity is combined with multiplySum or divideSum. It makes a kernel stop at a block
	// with an infinite or NaN sum, so that meanOf can compute the means of the block.
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
	canOverflow := t != Float16 || terms.isRounded
	if canOverflow {
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
	t         DataType // of the elements in srcs
	srcs      []unsafe.Pointer
	first     int  // index of the job's first element in each source
	isTree    bool // sums are computed pairwise, in a binary tree of the sources
	isRounded bool // each sum of a tree is rounded to t
}

// meanOf returns the mean of the sources' elements i, given their sum. If the sum is infinite or a
// NaN, it scales the elements down and adds them again, so that they do not overflow.
func meanOf[T float32 | float64](terms *averageTerms, sum T, i int) T {
	n := T(len(terms.srcs))
	difference := sum - sum //nolint:gocritic // It is NaN unless sum is finite.
	isFinite := difference == 0
	if isFinite {
		return sum / n
	}

	// The scale is exact: it is 1 divided by the smallest power of two that is at least n.
	powerOfTwo := 1 << bits.Len(uint(len(terms.srcs)-1))
	scale := 1 / T(powerOfTwo)
	return scaledSum(terms, terms.srcs, terms.first+i, scale) / (n * scale)
}

// scaledSum returns the sum of the sources' elements with index i, each multiplied by scale. It
// adds them in the order of the original sum.
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
		// The conversion prevents a fused addition.
		product := T(loadElement[T](terms.t, src, i) * scale) //nolint:unconvert // See above.
		if index == 0 {
			sum = product // not 0+product, which would turn -0 into +0
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

// averageIntegers averages the first size bytes, in blocks that fit into the L1 cache. It sums a
// block into the first destination, divides there, and copies the block to other destinations.
func averageIntegers[T integer](j job, size int) {
	const blockBytes = 4 << 10
	divisor := T(len(j.terms.srcs))
	firstDst, otherDsts := j.dsts[0], j.dsts[1:]
	j.dsts = j.dsts[:1] // j is a copy of the caller's job
	for from := 0; from < size; from += blockBytes {
		to := min(from+blockBytes, size)
		j.reduceStrides(from, to, cached) // not streamed, because the block is read again
		block := unsafe.Add(firstDst, from)
		divideIntegers(block, to-from, divisor)
		for _, dst := range otherDsts {
			Copy(unsafe.Add(dst, from), block, to-from, Hint{})
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

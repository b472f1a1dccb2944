package reduce

import (
	"math"
	"math/bits"
	"unsafe"
)

// division describes how a kernel divides or multiplies a sum before it rounds the result. Kernels
// depend on its layout.
type division struct {
	operand uint64 // the divisor or factor, from operandBits
	// stopOffset is the byte offset of the first block that has an infinite or NaN sum. The kernel
	// sets it and returns before it stores any byte of the block.
	stopOffset int
	mode       divisionMode
}

type divisionMode uint8

// The flags of kernels. With stopAtInfinity, a kernel stops at a block with an infinite or NaN sum.
const (
	noDivision     divisionMode = 0
	multiplySum    divisionMode = 2
	divideSum      divisionMode = 4
	stopAtInfinity divisionMode = 8
)

// If the number of sources is a power of two, the division multiplies by the reciprocal, which is
// exact and faster.
func newDivision(t DataType, terms *averageTerms) division {
	n := len(terms.srcs)
	f, mode := float64(n), divideSum
	if n&(n-1) == 0 {
		f, mode = 1/f, multiplySum
	}
	if t != Float16 || terms.isRounded { // sums of float16 in float32 do not overflow
		mode |= stopAtInfinity
	}
	return division{mode: mode, operand: operandBits(t, f)}
}

// operandBits returns the bits of f in the type in which elements of type t are combined.
func operandBits(t DataType, f float64) uint64 {
	if t == Float64 {
		return math.Float64bits(f)
	}
	return uint64(math.Float32bits(float32(f)))
}

func operandOf[T float32 | float64](bits uint64) T {
	var zero T
	if unsafe.Sizeof(zero) == 8 {
		return T(math.Float64frombits(bits))
	}
	return T(math.Float32frombits(uint32(bits)))
}

type averageTerms struct {
	t                 DataType
	srcs              []unsafe.Pointer
	first             int // index of the job's first element in each source
	isTree, isRounded bool
}

// meanOf returns the mean of element i, given the sum. If the sum is infinite or a NaN, it scales
// the elements down and adds them again, so that they do not overflow.
func meanOf[T float32 | float64](terms *averageTerms, sum T, i int) T {
	n := T(len(terms.srcs))
	if difference := sum - sum; difference == 0 { //nolint:gocritic // It is NaN unless sum is finite.
		return sum / n
	}
	scale := 1 / T(int(1)<<bits.Len(uint(len(terms.srcs)-1)))
	return scaledSum(terms, terms.srcs, terms.first+i, scale) / (n * scale)
}

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

// averageIntegers sums and divides one block after another, while it is in the L1 cache.
func averageIntegers[T integer](j job, size int) {
	const blockBytes = 4 << 10
	dsts := j.dsts
	j.dsts = dsts[:1]
	for from := 0; from < size; from += blockBytes {
		to := min(from+blockBytes, size)
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
	values := elements[T](p, 0, size)
	for i, x := range values {
		values[i] = x / divisor
	}
}

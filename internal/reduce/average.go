package reduce

import (
	"math"
	"math/bits"
	"unsafe"
)

// Average stores the mean of the sources in every destination.
func Average(t DataType, dsts, srcs []unsafe.Pointer, count int, hint Hint) {
	checkArguments(Sum, t, dsts, srcs, count)
	if len(srcs) == 1 { // the mean is the source
		Reduce(Sum, t, dsts, srcs, count, hint)
		return
	}

	terms := averageTerms{dataType: t, srcs: srcs}
	j := job{op: Sum, dataType: t, dsts: dsts, srcs: srcs, terms: terms}
	j.average(count*t.Size(), hint)
}

// averageTerms locates the elements of an average for meanOf.
type averageTerms struct {
	dataType  DataType
	srcs      []unsafe.Pointer
	first     int  // index of the job's first element in each source
	isTree    bool // adds the elements in the order of Tree
	isRounded bool // Tree.IsRounded
}

// average stores the means of the first size bytes.
func (j *job) average(size int, hint Hint) {
	switch j.dataType {
	case Float32, Float64, Float16, BFloat16:
		j.prepareFloatAverage()
		j.run(size, hint)
	case Int8:
		averageIntegers[int8](j, size)
	case Int16:
		averageIntegers[int16](j, size)
	case Int32:
		averageIntegers[int32](j, size)
	case Int64:
		averageIntegers[int64](j, size)
	case Uint8:
		averageIntegers[uint8](j, size)
	case Uint16:
		averageIntegers[uint16](j, size)
	case Uint32:
		averageIntegers[uint32](j, size)
	case Uint64:
		averageIntegers[uint64](j, size)
	}
}

// prepareFloatAverage sets operand and averageFlags. If the number of sources is a power of two,
// multiplication by the reciprocal is exact and faster.
func (j *job) prepareFloatAverage() {
	n := len(j.terms.srcs)
	operand, flags := float64(n), flagDivide
	isPowerOfTwo := n&(n-1) == 0
	if isPowerOfTwo {
		operand, flags = 1/operand, flagMultiply
	}

	// A float32 holds the sum of any 64 Float16 elements.
	canOverflow := j.dataType != Float16 || j.terms.isRounded
	if canOverflow {
		flags |= flagStopAtInfinity
	}

	j.operand, j.averageFlags = operandBits(j.dataType, operand), flags
}

// operandBits returns the bits of f as a float64 if t is Float64, and as a float32 otherwise.
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
// meanOf scales the elements to prevent overflow: for three sources, it divides the sum of x/4 by
// 3/4.
func meanOf[T float32 | float64](terms *averageTerms, sum T, i int) T {
	n := T(len(terms.srcs))
	isFinite := sum-sum == 0 //nolint:gocritic // Otherwise, the difference is a NaN.
	if isFinite {
		return sum / n
	}

	atLeastN := 1 << bits.Len(uint(len(terms.srcs)-1)) // a power of two
	scale := 1 / T(atLeastN)
	return sumScaled(terms, terms.srcs, terms.first+i, scale) / (n * scale)
}

// sumScaled adds element i of all srcs, multiplied by scale, in the order of the original sum.
func sumScaled[T float32 | float64](
	terms *averageTerms, srcs []unsafe.Pointer, i int, scale T,
) T {
	isInnerNode := terms.isTree && len(srcs) > 1
	if isInnerNode {
		half := len(srcs) / 2
		left := sumScaled(terms, srcs[:half], i, scale)
		right := sumScaled(terms, srcs[half:], i, scale)
		if terms.isRounded {
			return roundToType(terms.dataType, left+right)
		}

		return left + right
	}

	var sum T
	for index, src := range srcs {
		element := loadElement[T](terms.dataType, src, i)
		product := T(element * scale) //nolint:unconvert // T prevents a fused addition.
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

func roundToType[T float32 | float64](t DataType, v T) T {
	switch t {
	case Float16:
		return T(Float16Value(Float16Bits(float32(v))))
	case BFloat16:
		return T(BFloat16Value(BFloat16Bits(float32(v))))
	default:
		return v
	}
}

// averageIntegers computes the means of a block in the first destination, and copies them to the
// others.
func averageIntegers[T integer](j *job, size int) {
	const blockBytes = 4 << 10 // fits into the L1 cache
	divisor := T(len(j.terms.srcs))
	firstDst, otherDsts := j.dsts[0], j.dsts[1:]
	sumIntoFirst := *j
	sumIntoFirst.dsts = j.dsts[:1]
	for from := 0; from < size; from += blockBytes {
		to := min(from+blockBytes, size)
		sumIntoFirst.reduceStrides(from, to, noFlags)
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

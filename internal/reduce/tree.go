package reduce

import "unsafe"

// Tree describes a reduction in the order of a binary tree: (a + b) + (c + d) for the sources a, b,
// c and d, whereas the function Reduce computes ((a + b) + c) + d. Floats can be rounded
// differently. For integers, Min and Max, the results are equal, and the functions Reduce and
// Average are faster.
//
// By default, intermediate results such as a + b are float32 if the elements are 16-bit floats.
type Tree struct {
	Op        Op
	DataType  DataType
	IsRounded bool // whether intermediate results are rounded to DataType
	// IsScaled multiplies every element by Factor, as in ScaledSum. IsRounded rounds the products,
	// too. Op must be Sum.
	IsScaled bool
	Factor   float64
	// IsAverage divides the result by the number of sources. Op must be Sum.
	IsAverage bool
}

// treeBlock is the number of bytes per source in an intermediate result, which stays in the L1
// cache.
const treeBlock = 2 << 10

// treeBuffer holds an intermediate result, in float32 up to twice as long as its sources.
type treeBuffer [2 * treeBlock]byte

// Reduce stores the result in every destination. The number of sources must be a power of two.
// Other preconditions are those of the function Reduce.
func (tr Tree) Reduce(dsts, srcs []unsafe.Pointer, count int) {
	checkArguments(tr.Op, tr.DataType, dsts, srcs, count)
	isPowerOfTwo := len(srcs)&(len(srcs)-1) == 0
	requiresSum := tr.IsAverage || tr.IsScaled
	hasWrongOp := requiresSum && tr.Op != Sum
	if !isPowerOfTwo || hasWrongOp {
		panic("reduce: the number of sources must be a power of two, and an average or scaled " +
			"reduction must be a sum")
	}

	if len(srcs) == 1 {
		tr.reduceSingle(dsts, srcs, count)
		return
	}

	var accBuffer treeBuffer
	acc := unsafe.Pointer(&accBuffer)
	size := count * tr.DataType.Size()
	for from := 0; from < size; from += treeBlock {
		to := min(from+treeBlock, size)
		tr.combineSources(acc, srcs, from, to)
		tr.finishBlock(acc, srcs, from, to)
		for _, dst := range dsts {
			Copy(unsafe.Add(dst, from), acc, to-from, Hint{})
		}
	}
}

// reduceSingle is Reduce for one source, whose average needs no division.
func (tr *Tree) reduceSingle(dsts, srcs []unsafe.Pointer, count int) {
	if tr.IsScaled {
		ScaledSum(tr.DataType, dsts, srcs, count, tr.Factor, Hint{})
	} else {
		Reduce(tr.Op, tr.DataType, dsts, srcs, count, Hint{})
	}
}

func (tr *Tree) usesFloat32() bool {
	return (tr.DataType == Float16 || tr.DataType == BFloat16) && !tr.IsRounded
}

// accumulatorType returns the type of intermediate results, and their length for sourceBytes bytes
// of a source.
func (tr *Tree) accumulatorType(sourceBytes int) (t DataType, accBytes int) {
	if tr.usesFloat32() {
		return Float32, 2 * sourceBytes
	}

	return tr.DataType, sourceBytes
}

// combineSources combines the bytes [from, to) of each half of the sources, and then both results.
func (tr *Tree) combineSources(acc unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	if len(srcs) == 1 {
		tr.loadSource(acc, unsafe.Add(srcs[0], from), to-from)
		return
	}

	var rightBuffer treeBuffer
	right := unsafe.Pointer(&rightBuffer)
	half := len(srcs) / 2
	tr.combineSources(acc, srcs[:half], from, to)
	tr.combineSources(right, srcs[half:], from, to)
	t, accBytes := tr.accumulatorType(to - from)
	dsts, pair := [1]unsafe.Pointer{acc}, [2]unsafe.Pointer{acc, right} // acc has the left result
	Reduce(tr.Op, t, dsts[:], pair[:], accBytes/t.Size(), Hint{})
}

// loadSource converts and scales size bytes of src, and stores them in acc.
func (tr *Tree) loadSource(acc, src unsafe.Pointer, size int) {
	t, accBytes := tr.accumulatorType(size)
	converted := src
	if tr.usesFloat32() {
		toFloat32(tr.DataType, elements[float32](acc, 0, accBytes), elements[uint16](src, 0, size))
		converted = acc
	}

	if tr.IsScaled {
		dsts, srcs := [1]unsafe.Pointer{acc}, [1]unsafe.Pointer{converted}
		ScaledSum(t, dsts[:], srcs[:], accBytes/t.Size(), tr.Factor, Hint{})
	} else if converted != acc {
		Copy(acc, converted, accBytes, Hint{})
	}
}

// finishBlock turns acc, the combined bytes [from, to) of srcs, into the result: it divides if
// IsAverage is set, and converts the elements to DataType.
func (tr *Tree) finishBlock(acc unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	t, accBytes := tr.accumulatorType(to - from)
	if tr.IsAverage {
		// The job has one source, acc, but its terms are the original sources, from which it computes
		// means if sums have overflowed.
		terms := averageTerms{
			t: tr.DataType, srcs: srcs, first: from / tr.DataType.Size(), isTree: true,
			isRounded: tr.IsRounded,
		}
		accOnly := [1]unsafe.Pointer{acc}
		j := job{op: Sum, dataType: t, dsts: accOnly[:], srcs: accOnly[:], terms: terms}
		j.average(accBytes, Hint{})
	}

	if tr.usesFloat32() {
		// The conversion can be in place, because it goes from first to last. A 16-bit element overwrites
		// only float32s that were read before.
		sums, rounded := elements[float32](acc, 0, accBytes), elements[uint16](acc, 0, to-from)
		to16Bits(tr.DataType, rounded, sums)
	}
}

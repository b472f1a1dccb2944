package reduce

import "unsafe"

// Tree describes a reduction in the order of a binary tree. For the sources a, b, c and d, a sum is
// (a + b) + (c + d), while the function Reduce computes ((a + b) + c) + d. Floats can be rounded
// differently. For integers and for Min and Max, the results are the same, and the functions Reduce
// and Average are faster.
//
// By default, intermediate results such as a + b are float32 if the elements are 16-bit floats.
type Tree struct {
	Op        Op
	DataType  DataType
	IsRounded bool // whether intermediate results are rounded to DataType
	// IsScaled means that every element is multiplied by Factor, as in ScaledSum. Op must be Sum.
	// If IsRounded is set, the products are rounded to DataType.
	IsScaled bool
	Factor   float64
	// IsAverage means that the result is divided by the number of sources. Op must be Sum.
	IsAverage bool
}

// treeBlock is the number of bytes of each source that are reduced together. It is small, so that
// intermediate results stay in the L1 cache.
const treeBlock = 2 << 10

// treeBuffer holds an intermediate result of a block. Its elements may be float32, which are twice
// as long as 16-bit floats.
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

// reduceSingle is Reduce for one source. There is nothing to combine, and an average divides by 1.
func (tr *Tree) reduceSingle(dsts, srcs []unsafe.Pointer, count int) {
	if tr.IsScaled {
		ScaledSum(tr.DataType, dsts, srcs, count, tr.Factor, Hint{})
	} else {
		Reduce(tr.Op, tr.DataType, dsts, srcs, count, Hint{})
	}
}

// usesFloat32 reports whether intermediate results of 16-bit floats are float32.
func (tr *Tree) usesFloat32() bool {
	return (tr.DataType == Float16 || tr.DataType == BFloat16) && !tr.IsRounded
}

// accumulatorType returns the type of intermediate results, and the size of one whose elements have
// the given size in a source. Sizes are in bytes.
func (tr *Tree) accumulatorType(sourceBytes int) (t DataType, accBytes int) {
	if tr.usesFloat32() {
		return Float32, 2 * sourceBytes
	}

	return tr.DataType, sourceBytes
}

// combineSources combines the bytes [from, to) of the sources, and stores the intermediate result
// in acc. It combines each half of the sources first, and then both results.
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

// loadSource stores size bytes of src in acc, as the intermediate result of a single source. It
// converts the elements and, if IsScaled is set, multiplies them.
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

// finishBlock turns the intermediate result of all sources in acc into the result. If IsAverage is
// set, it divides the sums. It then converts the elements to DataType. The bytes of the sources
// were [from, to).
func (tr *Tree) finishBlock(acc unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	t, accBytes := tr.accumulatorType(to - from)
	if tr.IsAverage {
		// The job has one source, the sums in acc. Its terms are the original sources, from which it
		// computes means if sums have overflowed.
		terms := averageTerms{
			t: tr.DataType, srcs: srcs, first: from / tr.DataType.Size(), isTree: true,
			isRounded: tr.IsRounded,
		}
		accOnly := [1]unsafe.Pointer{acc}
		j := job{op: Sum, dataType: t, dsts: accOnly[:], srcs: accOnly[:], terms: terms}
		j.average(accBytes, Hint{})
	}

	if tr.usesFloat32() {
		// The conversion can be in place. It goes from the first element to the last, and stores each
		// 16-bit element before the first float32 that is still needed.
		sums, rounded := elements[float32](acc, 0, accBytes), elements[uint16](acc, 0, to-from)
		to16Bits(tr.DataType, rounded, sums)
	}
}

package reduce

import "unsafe"

// Tree describes a reduction in the order of a binary tree: it combines each half of the sources
// recursively, and then the two results. For integers and for Min and Max, the functions Reduce
// and Average are faster and give the same results.
type Tree struct {
	Op       Op
	DataType DataType
	// IsRounded means that intermediate results are rounded to DataType. Otherwise, those of 16-bit
	// floats are float32.
	IsRounded bool
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

// treeBuffer holds an intermediate result, in which elements may be twice as long as in the
// sources.
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

	if len(srcs) == 1 { // there is nothing to combine, and an average divides by 1
		if tr.IsScaled {
			ScaledSum(tr.DataType, dsts, srcs, count, tr.Factor, Hint{})
		} else {
			Reduce(tr.Op, tr.DataType, dsts, srcs, count, Hint{})
		}

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

// usesFloat32 reports whether 16-bit floats are combined as float32.
func (tr *Tree) usesFloat32() bool {
	return (tr.DataType == Float16 || tr.DataType == BFloat16) && !tr.IsRounded
}

// accumulatorType returns the type in which elements are combined. accBytes is the total size in
// this type of elements that have the given total size in the sources.
func (tr *Tree) accumulatorType(bytes int) (t DataType, accBytes int) {
	if tr.usesFloat32() {
		return Float32, 2 * bytes
	}

	return tr.DataType, bytes
}

// combineSources stores the combination of the sources' bytes [from, to) in acc, in the type of
// accumulatorType.
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
	dsts, pair := [1]unsafe.Pointer{acc}, [2]unsafe.Pointer{acc, right}
	Reduce(tr.Op, t, dsts[:], pair[:], accBytes/t.Size(), Hint{})
}

// loadSource converts size bytes of src to the type of accumulatorType, scales them if IsScaled is
// set, and stores them in acc.
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

// finishBlock divides the sums in acc if IsAverage is set, and converts them to DataType in place.
// acc contains the combination of the sources' bytes [from, to).
func (tr *Tree) finishBlock(acc unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	t, accBytes := tr.accumulatorType(to - from)
	if tr.IsAverage {
		// The only source of this job is the sum. Its terms are the original sources, for means
		// whose sum has overflowed.
		terms := averageTerms{
			t: tr.DataType, srcs: srcs, first: from / tr.DataType.Size(), isTree: true,
			isRounded: tr.IsRounded,
		}
		accOnly := [1]unsafe.Pointer{acc}
		j := job{op: Sum, dataType: t, dsts: accOnly[:], srcs: accOnly[:], terms: terms}
		j.average(accBytes, Hint{})
	}

	if tr.usesFloat32() {
		// In place is safe: an element of 16 bits never lies behind the float32 it is made of.
		sums, rounded := elements[float32](acc, 0, accBytes), elements[uint16](acc, 0, to-from)
		to16Bits(tr.DataType, rounded, sums)
	}
}

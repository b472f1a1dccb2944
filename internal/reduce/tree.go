package reduce

import "unsafe"

// Tree describes a reduction in the order of a binary tree: (a + b) + (c + d) for the sources a, b,
// c and d, whereas the function Reduce computes ((a + b) + c) + d. The order matters only for sums
// and products of floats. Otherwise, the functions Reduce and Average are faster.
//
// Intermediate results of 16-bit floats, such as a + b, are float32 unless IsRounded is set.
type Tree struct {
	Op        Op
	DataType  DataType
	IsRounded bool // whether intermediate results are rounded to DataType
	// IsScaled multiplies every element by Factor, as in ScaledSum. The products are intermediate
	// results. Op must be Sum.
	IsScaled bool
	Factor   float64
	// IsAverage divides the result by the number of sources. Op must be Sum.
	IsAverage bool
}

// treeBlock is the number of bytes of each source that are reduced before the next block, so that
// intermediate results stay in the L1 cache.
const treeBlock = 2 << 10

// treeBuffer holds an intermediate result. float32s need twice the bytes of 16-bit floats.
type treeBuffer [2 * treeBlock]byte

// Reduce stores the result in every destination. The number of sources must be a power of two. Like
// the function Reduce, it panics if an argument is invalid.
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

// reduceSingle is Reduce for one source, which is also the average.
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

// accumulatorType returns the type of intermediate results. Those of sourceBytes bytes of a source
// have accBytes bytes.
func (tr *Tree) accumulatorType(sourceBytes int) (t DataType, accBytes int) {
	if tr.usesFloat32() {
		return Float32, 2 * sourceBytes
	}

	return tr.DataType, sourceBytes
}

// combineSources combines the bytes [from, to) of the sources in acc.
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
	dsts := [1]unsafe.Pointer{acc}
	halves := [2]unsafe.Pointer{acc, right}
	Reduce(tr.Op, t, dsts[:], halves[:], accBytes/t.Size(), Hint{})
}

// loadSource converts and scales sourceBytes bytes of src, and stores them in acc.
func (tr *Tree) loadSource(acc, src unsafe.Pointer, sourceBytes int) {
	t, accBytes := tr.accumulatorType(sourceBytes)
	if tr.usesFloat32() {
		toFloat32(tr.DataType, elements[float32](acc, 0, accBytes), elements[uint16](src, 0, sourceBytes))
		src = acc
	}

	if tr.IsScaled {
		dsts, srcs := [1]unsafe.Pointer{acc}, [1]unsafe.Pointer{src}
		ScaledSum(t, dsts[:], srcs[:], accBytes/t.Size(), tr.Factor, Hint{})
	} else {
		Copy(acc, src, accBytes, Hint{})
	}
}

// finishBlock turns acc, the result of combineSources, into an average if IsAverage is set, and
// rounds it to DataType.
func (tr *Tree) finishBlock(acc unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	t, accBytes := tr.accumulatorType(to - from)
	if tr.IsAverage {
		terms := averageTerms{
			dataType: tr.DataType, srcs: srcs, first: from / tr.DataType.Size(), isTree: true,
			isRounded: tr.IsRounded,
		}
		accOnly := [1]unsafe.Pointer{acc}
		j := job{op: Sum, dataType: t, dsts: accOnly[:], srcs: accOnly[:], terms: terms}
		j.average(accBytes, Hint{})
	}

	if tr.usesFloat32() {
		// In ascending order, each 16-bit element overwrites only float32s that were read before.
		sums, rounded := elements[float32](acc, 0, accBytes), elements[uint16](acc, 0, to-from)
		to16Bits(tr.DataType, rounded, sums)
	}
}

package reduce

import "unsafe"

// Tree combines sources as a binary tree: it combines each half of the sources recursively, and
// then combines the two results. The order does not affect the results for integers, or for Min and
// Max of any type, so callers can use the functions Reduce and Average instead, which are faster.
type Tree struct {
	Op Op
	T  DataType
	// Rounded applies to 16-bit floats. If it is set, every intermediate result is rounded to T. If
	// not, intermediate results are float32, and only the final result is rounded.
	Rounded bool
	// Scaled means that every element is multiplied by Factor before the sum, as in the function
	// ScaledSum. Op must be Sum. If Rounded is also set, the products are rounded too.
	Scaled bool
	Factor float64
	// Average means that the result is divided by the number of sources, as in the function
	// Average. Op must be Sum.
	Average bool
}

// treeBlock is the number of bytes of each source that a Tree combines at a time. It is small
// enough that intermediate results stay in the L1 cache.
const treeBlock = 2 << 10

type scratch [2 * treeBlock]byte

// Reduce combines the sources and stores the result in every destination. The number of sources
// must be a power of two. The function Reduce lists the other preconditions. The package comment
// specifies the arithmetic.
func (tr Tree) Reduce(dsts, srcs []unsafe.Pointer, count int) {
	check(tr.Op, tr.T, dsts, srcs, count)
	if len(srcs)&(len(srcs)-1) != 0 || (tr.Average || tr.Scaled) && tr.Op != Sum {
		panic("reduce: the number of sources is not a power of two, or an average is not a sum")
	}
	switch {
	case len(srcs) == 1 && tr.Scaled:
		ScaledSum(tr.T, dsts, srcs, count, tr.Factor, Hint{})
		return
	case len(srcs) == 1:
		Reduce(tr.Op, tr.T, dsts, srcs, count, Hint{})
		return
	}
	var out scratch
	acc := unsafe.Pointer(&out)
	for size, from := count*tr.T.Size(), 0; from < size; from += treeBlock {
		to := min(from+treeBlock, size)
		tr.combine(acc, srcs, from, to)
		tr.finish(acc, srcs, from, to)
		for _, dst := range dsts {
			Copy(unsafe.Add(dst, from), acc, to-from, Hint{})
		}
	}
}

func (tr *Tree) wide() bool { return (tr.T == Float16 || tr.T == BFloat16) && !tr.Rounded }

// accumulator returns the type in which elements are combined. Given a number of bytes of a source,
// it also returns how many bytes their elements occupy in that type.
func (tr *Tree) accumulator(bytes int) (DataType, int) {
	if tr.wide() {
		return Float32, 2 * bytes
	}
	return tr.T, bytes
}

func (tr *Tree) combine(acc unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	t, bytes := tr.accumulator(to - from)
	if len(srcs) == 1 {
		tr.load(acc, unsafe.Add(srcs[0], from), to-from)
		return
	}
	var right scratch
	half := len(srcs) / 2
	tr.combine(acc, srcs[:half], from, to)
	tr.combine(unsafe.Pointer(&right), srcs[half:], from, to)
	dsts, pair := [1]unsafe.Pointer{acc}, [2]unsafe.Pointer{acc, unsafe.Pointer(&right)}
	Reduce(tr.Op, t, dsts[:], pair[:], bytes/t.Size(), Hint{})
}

// load copies the elements of one source to acc, converts them to the accumulator type and, in a
// scaled sum, multiplies them by the factor.
func (tr *Tree) load(acc, src unsafe.Pointer, size int) {
	t, bytes := tr.accumulator(size)
	if tr.wide() {
		widen(tr.T, elements[float32](acc, 0, bytes), elements[uint16](src, 0, size))
		src = acc
	}
	dsts, srcs := [1]unsafe.Pointer{acc}, [1]unsafe.Pointer{src}
	switch {
	case tr.Scaled:
		ScaledSum(t, dsts[:], srcs[:], bytes/t.Size(), tr.Factor, Hint{})
	case src != acc:
		Copy(acc, src, bytes, Hint{})
	}
}

func (tr *Tree) finish(acc unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	t, bytes := tr.accumulator(to - from)
	if tr.Average {
		one := [1]unsafe.Pointer{acc}
		j := job{op: Sum, t: t, dsts: one[:], srcs: one[:], terms: terms{
			t: tr.T, srcs: srcs, first: from / tr.T.Size(), tree: true, rounded: tr.Rounded,
		}}
		j.average(bytes, Hint{})
	}
	if tr.wide() {
		round(tr.T, elements[uint16](acc, 0, to-from), elements[float32](acc, 0, bytes))
	}
}

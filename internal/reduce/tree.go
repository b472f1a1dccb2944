package reduce

import "unsafe"

// Tree combines sources as a binary tree: it combines each half of the sources recursively, and
// then the two results. For integers, minimum and maximum the order does not matter, and the
// functions Reduce and Average are faster.
type Tree struct {
	Op Op
	T  DataType
	// Rounded is set if each combination of 16-bit floats is rounded to their type. Otherwise
	// intermediate results are float32 until the final rounding.
	Rounded bool
	// Scaled multiplies every element by Factor before the sum, like the function ScaledSum. Op
	// must be Sum. With Rounded, the products are rounded, too.
	Scaled bool
	Factor float64
	// Average divides the result by the number of sources, like the function Average. Op must be
	// Sum.
	Average bool
}

// treeBlock is the number of bytes of each source that a Tree combines at a time. Intermediate
// results of this size stay in the L1 cache.
const treeBlock = 2 << 10

type scratch [2 * treeBlock]byte

// Reduce combines the sources and stores the result into every destination. The number of sources
// must be a power of two. Values, memory and other preconditions are those of the function Reduce.
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
	at := unsafe.Pointer(&out)
	for size, from := count*tr.T.Size(), 0; from < size; from += treeBlock {
		to := min(from+treeBlock, size)
		tr.combine(at, srcs, from, to)
		tr.finish(at, srcs, from, to)
		for _, dst := range dsts {
			Copy(unsafe.Add(dst, from), at, to-from, Hint{})
		}
	}
}

func (tr *Tree) wide() bool { return (tr.T == Float16 || tr.T == BFloat16) && !tr.Rounded }

// accumulator returns the type in which elements are combined, and the size of the given bytes in
// that type.
func (tr *Tree) accumulator(bytes int) (DataType, int) {
	if tr.wide() {
		return Float32, 2 * bytes
	}
	return tr.T, bytes
}

func (tr *Tree) combine(into unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	t, bytes := tr.accumulator(to - from)
	if len(srcs) == 1 {
		tr.load(into, unsafe.Add(srcs[0], from), to-from)
		return
	}
	var right scratch
	half := len(srcs) / 2
	tr.combine(into, srcs[:half], from, to)
	tr.combine(unsafe.Pointer(&right), srcs[half:], from, to)
	dsts, pair := [1]unsafe.Pointer{into}, [2]unsafe.Pointer{into, unsafe.Pointer(&right)}
	Reduce(tr.Op, t, dsts[:], pair[:], bytes/t.Size(), Hint{})
}

// load stores one source's elements, multiplied by the factor if any, in the accumulator's type.
func (tr *Tree) load(into, src unsafe.Pointer, size int) {
	t, bytes := tr.accumulator(size)
	if tr.wide() {
		widen(tr.T, elements[float32](into, 0, bytes), elements[uint16](src, 0, size))
		src = into
	}
	one, from := [1]unsafe.Pointer{into}, [1]unsafe.Pointer{src}
	switch {
	case tr.Scaled:
		ScaledSum(t, one[:], from[:], bytes/t.Size(), tr.Factor, Hint{})
	case src != into:
		Copy(into, src, bytes, Hint{})
	}
}

func (tr *Tree) finish(at unsafe.Pointer, srcs []unsafe.Pointer, from, to int) {
	t, bytes := tr.accumulator(to - from)
	if tr.Average {
		one := [1]unsafe.Pointer{at}
		j := job{op: Sum, t: t, dsts: one[:], srcs: one[:], terms: terms{
			t: tr.T, srcs: srcs, first: from / tr.T.Size(), tree: true, rounded: tr.Rounded,
		}}
		j.average(bytes, Hint{})
	}
	if tr.wide() {
		round(tr.T, elements[uint16](at, 0, to-from), elements[float32](at, 0, bytes))
	}
}

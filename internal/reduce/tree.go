package reduce

import "unsafe"

// Tree combines each half of the sources recursively, and then combines the two results. For
// integers, Min and Max, the functions Reduce and Average give the same results faster.
type Tree struct {
	Op Op
	T  DataType
	// Rounded applies to 16-bit floats. If it is set, every intermediate result is rounded to T. If
	// not, intermediate results are float32.
	Rounded bool
	// Scaled means that every element is multiplied by Factor, as in the function ScaledSum. Op
	// must be Sum. If Rounded is also set, the products are rounded too.
	Scaled bool
	Factor float64
	// Average means that the result is divided by the number of sources. Op must be Sum.
	Average bool
}

// treeBlock is small enough that intermediate results stay in the L1 cache.
const treeBlock = 2 << 10

type scratch [2 * treeBlock]byte

// Reduce combines a power of two of sources and stores the result in every destination. Other
// preconditions are those of the function Reduce.
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

func (tr *Tree) widens() bool { return (tr.T == Float16 || tr.T == BFloat16) && !tr.Rounded }

// accumulator returns the type in which elements are combined, and the size in that type of the
// given number of bytes.
func (tr *Tree) accumulator(bytes int) (DataType, int) {
	if tr.widens() {
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

// load converts the elements of one source to the accumulator type and, in a scaled sum, multiplies
// them by the factor.
func (tr *Tree) load(acc, src unsafe.Pointer, size int) {
	t, bytes := tr.accumulator(size)
	if tr.widens() {
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
	if tr.widens() {
		round(tr.T, elements[uint16](acc, 0, to-from), elements[float32](acc, 0, bytes))
	}
}

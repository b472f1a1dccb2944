package kernels

import (
	"fmt"

	"symmem/driver"
)

// A specialized kernel is compiled for one type of elements, and combines the elements of ranks in
// order: ((a0+a1)+a2)+a3. A generic kernel supports all types, more operations, and trees:
// (a0+a1)+(a2+a3). The kernel argument Launch.reduction selects the operation and, in generic
// kernels, the order and the type.

// elementType describes a type that kernels can reduce.
type elementType struct {
	number            uint32 // in Launch.reduction of generic kernels
	name              string // in names of specialized kernels; "" if the type has none
	isTreatedAsSigned bool   // the type is unsigned, but its kernels are for a signed type
}

var types = map[driver.DataType]elementType{
	driver.Float32:  {number: 0, name: "f32"},
	driver.Float64:  {number: 1},
	driver.Float16:  {number: 2, name: "f16"},
	driver.BFloat16: {number: 3, name: "bf16"},
	driver.Int8:     {number: 4},
	driver.Uint8:    {number: 5},
	driver.Int32:    {number: 6, name: "i32"},
	driver.Int64:    {number: 7},
	driver.Uint32:   {number: 6, name: "i32", isTreatedAsSigned: true},
	driver.Uint64:   {number: 7, isTreatedAsSigned: true},
}

// Launch.reduction is operation | order | type*typeUnit, with the numbers of src/call.h. An order
// is orderRanks, orderTree, or orderTree | orderRounded.
const (
	orderRanks   = 0
	orderTree    = 1 << 3
	orderRounded = 1 << 4 // rounds intermediate results to the type of the elements
	typeUnit     = 1 << 5

	lastSpecializedOp = 2 // specialized kernels support operation numbers up to 2 (Max)
)

// CanReduce reports whether symmem's kernels support a reduction of elements of a type.
func CanReduce(t driver.DataType, op driver.ReduceOp) bool {
	element, supportsType := types[t]
	supportsOp := op.Kernel() != 0
	comparesWrongly := element.isTreatedAsSigned && op.NeedsUnsigned(t)
	return supportsType && supportsOp && !comparesWrongly
}

// setReduction sets reduction, divisor and isGeneric. It returns an error if no kernel supports the
// reduction.
func (l *Launch) setReduction() error {
	if !CanReduce(l.DataType, l.ReduceOp) {
		return fmt.Errorf("%w for %v of %v with %v", errNoKernel, l.Operation, l.DataType, l.ReduceOp)
	}

	order, err := l.order()
	if err != nil {
		return err
	}

	if l.ReduceOp.IsAverage() {
		l.divisor = uint32(l.Ranks)
	}

	element := types[l.DataType]
	op, _ := l.ReduceOp.Kernel().Number() // exists, because CanReduce has returned true
	hasSpecialized := element.name != "" && op <= lastSpecializedOp && order == orderRanks
	l.isGeneric = !hasSpecialized
	l.reduction = uint32(op)
	if l.isGeneric {
		l.reduction |= order | element.number*typeUnit
	}

	return nil
}

// order returns the order in which elements are combined. It replaces a tree by orderRanks, which
// may have a specialized kernel, if both give the same result.
func (l *Launch) order() (uint32, error) {
	isTree := l.Formula == driver.Tree || l.Formula == driver.RoundedTree
	if !isTree {
		return orderRanks, nil
	}

	isPowerOfTwo := l.Ranks&(l.Ranks-1) == 0
	if !isPowerOfTwo {
		return orderRanks, fmt.Errorf("%w for the formula %v with %d ranks: the number of ranks must "+
			"be a power of two", errNoKernel, l.Formula, l.Ranks)
	}

	isExact := !l.DataType.Float() || l.ReduceOp.IsMinOrMax()
	if isExact {
		return orderRanks, nil
	}

	hasPartialSums := l.Ranks > 2
	// An average divides the total, which is then an intermediate result as well.
	hasIntermediates := hasPartialSums || l.ReduceOp.IsAverage()
	const halfPrecision = 2 // bytes; kernels compute with more precision
	mayRound := l.Formula == driver.RoundedTree && l.DataType.Size() == halfPrecision
	switch {
	case mayRound && hasIntermediates:
		return orderTree | orderRounded, nil
	case hasPartialSums:
		return orderTree, nil
	default: // the only operation is a0+a1
		return orderRanks, nil
	}
}

// kernelName returns the name of a specialized kernel for 4 ranks, such as line_sum_f32_4 for the
// family "line_sum", or line_copy_4 for "line_copy", which needs no type.
func (l *Launch) kernelName(family string) string {
	rankCount := 8 // the kernel for 8 ranks also supports fewer
	if l.Ranks == 2 || l.Ranks == 4 {
		rankCount = l.Ranks
	}

	if l.Operation.Reduces() {
		return fmt.Sprintf("%s_%s_%d", family, types[l.DataType].name, rankCount)
	}

	return fmt.Sprintf("%s_%d", family, rankCount)
}

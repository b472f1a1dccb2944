package kernels

import (
	"fmt"

	"symmem/driver"
)

// Specialized kernels are compiled for one type and combine the elements of ranks in order:
// ((a0+a1)+a2)+a3. Generic kernels support all types, more operations, and trees:
// (a0+a1)+(a2+a3). An argument of the kernel, Launch.reduction, selects the operation. For generic
// kernels, it also encodes the order and the type.

// elementType describes a type that kernels can reduce.
type elementType struct {
	number            uint32 // for generic kernels
	name              string // in names of specialized kernels, or "" if there are none
	isTreatedAsSigned bool   // whether kernels treat unsigned elements as signed ones
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

// Launch.reduction is operation | order | type*typeUnit, with the numbers of src/call.h.
const (
	lastSpecializedOp = 2 // Max; specialized kernels support only operations up to this number

	orderRanks   = 0
	orderTree    = 8
	orderRounded = 16 // with orderTree: round intermediate results to the type of the elements
	typeUnit     = 32
)

// CanReduce reports whether symmem's kernels support a reduction of elements of a type.
func CanReduce(t driver.DataType, op driver.ReduceOp) bool {
	element, hasTypeKernel := types[t]
	hasOpKernel := op.Kernel() != 0
	if !hasTypeKernel || !hasOpKernel {
		return false
	}

	comparesWrongly := element.isTreatedAsSigned && op.ComparesUnsigned(t)
	return !comparesWrongly
}

// setReduction sets the fields reduction, divisor and isGeneric. It returns an error if no kernel
// supports the reduction.
func (l *Launch) setReduction() error {
	if !CanReduce(l.DataType, l.ReduceOp) {
		return fmt.Errorf("%w for %v of %v with %v", errNoKernel, l.Operation, l.DataType, l.ReduceOp)
	}

	if l.ReduceOp.IsAverage() {
		l.divisor = uint32(l.Ranks)
	}

	element := types[l.DataType]
	op, _ := l.ReduceOp.Kernel().Number() // exists, because CanReduce has returned true
	order, err := l.order()
	hasSpecialized := element.name != "" && op <= lastSpecializedOp && order == orderRanks
	l.isGeneric = !hasSpecialized
	l.reduction = uint32(op)
	if l.isGeneric {
		l.reduction |= order | element.number*typeUnit
	}

	return err
}

// order returns the order in which elements are combined. It replaces a tree by orderRanks if the
// results are the same. Trees require a power of two of ranks.
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

	hasPartialResults := l.Ranks > 2
	// The sum of an average is an intermediate result, too: the division follows.
	hasIntermediates := hasPartialResults || l.ReduceOp.IsAverage()
	roundsIntermediates := l.Formula == driver.RoundedTree && l.DataType.Size() == 2
	switch {
	case roundsIntermediates && hasIntermediates:
		return orderTree | orderRounded, nil
	case hasPartialResults:
		return orderTree, nil
	default:
		return orderRanks, nil
	}
}

// kernelName returns the name of a specialized kernel, such as line_sum_f32_4 for the family
// "line_sum", or line_copy_4, which needs no type.
func (l *Launch) kernelName(family string) string {
	rankCount := 8 // also for 3, 5, 6 and 7 ranks
	if l.Ranks == 2 || l.Ranks == 4 {
		rankCount = l.Ranks
	}

	if l.Operation.Reduces() {
		return fmt.Sprintf("%s_%s_%d", family, types[l.DataType].name, rankCount)
	}

	return fmt.Sprintf("%s_%d", family, rankCount)
}

package kernels

import (
	"fmt"

	"symmem/driver"
)

// A reduction combines elements of all ranks. For example, the kernel line_sum_f32_4 computes sums,
// minimums or maximums of the float32 elements of 4 ranks. It combines them in the order of ranks:
// ((a0+a1)+a2)+a3. Such a specialized kernel is compiled for one type. Generic kernels support all
// types in the table below, products, and the order of a tree: (a0+a1)+(a2+a3).
//
// Kernels have an argument that selects the reduction, from Launch.reduction. For a specialized
// kernel, it is the number of the operation. For a generic kernel, it also contains the order and
// the type: a product (3) of float64 elements (1*typeUnit) as a tree (orderTree) is 3+32+8.

// elementType describes a type that kernels can reduce.
type elementType struct {
	number     uint32 // for generic kernels
	name       string // in the names of specialized kernels, or "" if there are none
	isUnsigned bool   // the type is unsigned, but has the kernels of the signed type
}

var types = map[driver.DataType]elementType{
	driver.Float32: {number: 0, name: "f32"}, driver.Float64: {number: 1},
	driver.Float16: {number: 2, name: "f16"}, driver.BFloat16: {number: 3, name: "bf16"},
	driver.Int8: {number: 4}, driver.Uint8: {number: 5},
	driver.Int32: {number: 6, name: "i32"}, driver.Int64: {number: 7},
	driver.Uint32: {number: 6, name: "i32", isUnsigned: true},
	driver.Uint64: {number: 7, isUnsigned: true},
}

// The numbers of operations, types and orders, and typeUnit, are the same as in src/call.h.
const (
	lastSpecializedOp = 2 // Max; only generic kernels support the operations with higher numbers

	orderRanks   = 0  // combine elements in the order of ranks
	orderTree    = 8  // combine pairs of ranks, then pairs of the results, and so on
	orderRounded = 16 // also round each result to the type of the elements
	typeUnit     = 32
)

// CanReduce reports whether symmem's kernels support a reduction of elements of a type.
func CanReduce(t driver.DataType, op driver.ReduceOp) bool {
	element, hasTypeKernel := types[t]
	hasOpKernel := op.Kernel() != 0
	if !hasTypeKernel || !hasOpKernel {
		return false
	}

	// A kernel of the signed type compares unsigned values wrongly.
	comparesWrongly := element.isUnsigned && op.ComparesUnsigned(t)
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
	op, _ := l.ReduceOp.Kernel().Number() // has a number, because CanReduce has returned true
	order, err := l.order()
	hasSpecialized := element.name != "" && op <= lastSpecializedOp && order == orderRanks
	l.isGeneric = !hasSpecialized
	l.reduction = uint32(op)
	if l.isGeneric {
		l.reduction |= order | element.number*typeUnit
	}

	return err
}

// order returns the order in which elements are combined. For a tree, it returns orderRanks if the
// results are the same. It returns an error for a tree whose number of ranks is not a power of two.
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

	isInexact := l.DataType.Float() && !l.ReduceOp.IsMinOrMax()
	if !isInexact {
		return orderRanks, nil // the results are the same in every order
	}

	roundsResults := l.Formula == driver.RoundedTree && l.DataType.Size() == 2
	// On two ranks, there is only one result, and it is rounded anyway. In an average, however, it
	// is rounded before the division, too.
	hasSeveralResults := l.Ranks > 2
	switch {
	case roundsResults && (hasSeveralResults || l.ReduceOp.IsAverage()):
		return orderTree | orderRounded, nil
	case hasSeveralResults:
		return orderTree, nil
	default:
		return orderRanks, nil
	}
}

// kernelName returns the name of a specialized kernel of a family, such as "line_sum". It adds the
// type and the number of ranks, as in line_sum_f32_4. A kernel that only copies has no type, as in
// line_copy_4.
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

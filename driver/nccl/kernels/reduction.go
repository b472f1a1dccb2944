package kernels

import (
	"fmt"

	"symmem/driver"
)

// types holds the types of elements that kernels can reduce. Specialized kernels are compiled for
// one type, and generic kernels for all types.
var types = map[driver.DataType]struct {
	number     uint32 // identifies the type in an argument of generic kernels
	name       string // in the names of specialized kernels, or "" if there are none
	isUnsigned bool   // the type is unsigned, but uses the kernels of the signed type
}{
	driver.Float32: {number: 0, name: "f32"}, driver.Float64: {number: 1},
	driver.Float16: {number: 2, name: "f16"}, driver.BFloat16: {number: 3, name: "bf16"},
	driver.Int8: {number: 4}, driver.Uint8: {number: 5},
	driver.Int32: {number: 6, name: "i32"}, driver.Int64: {number: 7},
	driver.Uint32: {number: 6, name: "i32", isUnsigned: true},
	driver.Uint64: {number: 7, isUnsigned: true},
}

// Launch.reduction is a number of enum Op in src/call.h. For generic kernels, it also includes
// bits of enum Order, and the number of the data type times typeUnit.
const (
	lastSpecializedOp = 2 // Max; only generic kernels support higher numbers

	orderTree    = 8  // in enum Order: add pairs of ranks, then pairs of these sums, and so on
	orderRounded = 16 // in enum Order: round each sum to the data type
	typeUnit     = 32
)

// setReduction sets the fields reduction, divisor and isGeneric. It returns an error if no kernel
// supports the reduction.
func (l *Launch) setReduction() (err error) {
	if !CanReduce(l.DataType, l.ReduceOp) {
		return fmt.Errorf("%w for %v of %v with %v", errNoKernel, l.Operation, l.DataType, l.ReduceOp)
	}

	elementType := types[l.DataType]
	op, _ := l.ReduceOp.Kernel().Number() // has a number, because CanReduce has returned true
	l.reduction = uint32(op)
	if l.ReduceOp.IsAverage() {
		l.divisor = uint32(l.Ranks)
	}

	orderBits := uint32(0) // combine elements in the order of ranks
	if l.Formula == driver.Tree || l.Formula == driver.RoundedTree {
		orderBits, err = l.orderBits()
	}

	l.isGeneric = elementType.name == "" || op > lastSpecializedOp || orderBits != 0
	if l.isGeneric {
		l.reduction |= orderBits | elementType.number*typeUnit
	}

	return err
}

// CanReduce reports whether symmem's kernels support a reduction of elements of a type.
func CanReduce(t driver.DataType, op driver.ReduceOp) bool {
	elementType, isListed := types[t]
	if !isListed || op.Kernel() == 0 { // no kernel for the type, or for the operation
		return false
	}

	// A kernel of the signed type compares unsigned values wrongly.
	comparesWrongly := elementType.isUnsigned && op.ComparesUnsigned(t)
	return !comparesWrongly
}

// orderBits returns the bits of enum Order for the formula Tree or RoundedTree. It returns 0 if
// combining elements in the order of ranks gives the same results.
//
// On two ranks, there is only one sum, so only averages of a RoundedTree differ: the sum is rounded
// before it is divided.
func (l *Launch) orderBits() (uint32, error) {
	isPowerOfTwo := l.Ranks&(l.Ranks-1) == 0
	if !isPowerOfTwo {
		return 0, fmt.Errorf("%w for the formula %v with %d ranks: the number of ranks must be a power "+
			"of two", errNoKernel, l.Formula, l.Ranks)
	}

	roundsSums := l.Formula == driver.RoundedTree && l.DataType.Size() == 2
	switch {
	case !l.DataType.Float(), l.ReduceOp.IsMinOrMax():
		return 0, nil
	case roundsSums && (l.Ranks > 2 || l.ReduceOp.IsAverage()):
		return orderTree | orderRounded, nil
	case l.Ranks > 2:
		return orderTree, nil
	}

	return 0, nil
}

// kernelName returns the name of a specialized kernel for the data type and the number of ranks,
// such as line_sum_f32_4. Kernels that only copy have names such as line_copy_4.
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

package kernels

import (
	"fmt"

	"symmem/driver"
)

// types lists the types of elements that kernels can reduce. number is for generic kernels (those
// for all types). name is in the names of specialized kernels, or "" if there are none.
var types = map[driver.DataType]struct {
	number     uint32
	name       string
	isUnsigned bool // unsigned, but uses the kernels of a signed type
}{
	driver.Float32: {number: 0, name: "f32"}, driver.Float64: {number: 1},
	driver.Float16: {number: 2, name: "f16"}, driver.BFloat16: {number: 3, name: "bf16"},
	driver.Int8: {number: 4}, driver.Uint8: {number: 5},
	driver.Int32: {number: 6, name: "i32"}, driver.Int64: {number: 7},
	driver.Uint32: {number: 6, name: "i32", isUnsigned: true},
	driver.Uint64: {number: 7, isUnsigned: true},
}

// Launch.reduction is the number of the operation (enum Op of call.h), plus, for generic kernels,
// bits of enum Order and number*typeUnit.
const (
	lastSpecializedOp = 2 // Max; only generic kernels support higher numbers

	orderTree    = 8
	orderRounded = 16
	typeUnit     = 32
)

func (l *Launch) setReduction() (err error) {
	if !CanReduce(l.DataType, l.ReduceOp) {
		return fmt.Errorf("%w for %v of %v with %v", errNoKernel, l.Operation, l.DataType, l.ReduceOp)
	}
	elementType := types[l.DataType]
	op, _ := l.ReduceOp.Kernel().Number()
	if l.reduction = uint32(op); l.ReduceOp.IsAverage() {
		l.divisor = uint32(l.Ranks)
	}
	orderBits := uint32(0)
	if l.Formula == driver.Tree || l.Formula == driver.RoundedTree {
		orderBits, err = l.findOrderBits()
	}
	if l.isGeneric = elementType.name == "" || op > lastSpecializedOp || orderBits != 0; l.isGeneric {
		l.reduction |= orderBits | elementType.number*typeUnit
	}
	return err
}

// CanReduce reports whether symmem's kernels support a reduction of elements of a type.
func CanReduce(t driver.DataType, op driver.ReduceOp) bool {
	elementType, isListed := types[t]
	return isListed && op.Kernel() != 0 && (!elementType.isUnsigned || !op.ComparesUnsigned(t))
}

// findOrderBits returns 0 if combining elements in the order of ranks gives the same results as a
// tree. With two ranks, only averages of a RoundedTree differ.
func (l *Launch) findOrderBits() (uint32, error) {
	if l.Ranks&(l.Ranks-1) != 0 {
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

func (l *Launch) kernelName(family string) string {
	rankCount := 8
	if l.Ranks == 2 || l.Ranks == 4 {
		rankCount = l.Ranks
	}
	if l.Operation.Reduces() {
		return fmt.Sprintf("%s_%s_%d", family, types[l.DataType].name, rankCount)
	}
	return fmt.Sprintf("%s_%d", family, rankCount)
}

package kernels

import (
	"fmt"

	"symmem/driver"
)

// types lists the types that kernels reduce. Each has a number in kernels of any reduction. Types
// with specialized kernels also have a name in these kernels, which reduce in the order of ranks,
// with the reductions up to lastSpecial.
var types = map[driver.DataType]struct {
	number uint32
	name   string
}{
	driver.Float32: {0, "f32"}, driver.Float64: {1, ""}, driver.Float16: {2, "f16"},
	driver.BFloat16: {3, "bf16"}, driver.Int8: {4, ""}, driver.Uint8: {5, ""},
	driver.Int32: {6, "i32"}, driver.Int64: {7, ""},
}

// The word that describes a reduction to the kernels contains its number in enum Op of call.h
// (driver.ReduceOp.Kernel). For kernels of any reduction it also contains enum Order and the number
// of the type.
const (
	lastSpecial = 2 // Max, the last reduction that has specialized kernels

	orderTree    = 8
	orderRounded = 16
	typeUnit     = 32
)

// setReduction sets the word that describes the call's reduction to the kernels.
func (l *Launch) setReduction() (err error) {
	t, typed := types[l.DataType]
	op, known := l.ReduceOp.Kernel().Number()
	if !typed || !known {
		return fmt.Errorf("%w for %v of %v with %v", errNoKernel, l.Operation, l.DataType, l.ReduceOp)
	}
	if l.op = uint32(op); l.ReduceOp.Divides() {
		l.divisor = uint32(l.Ranks)
	}
	order := uint32(0)
	if l.Formula == driver.Tree || l.Formula == driver.RoundedTree {
		order, err = l.treeBits()
	}
	if l.any = t.name == "" || op > lastSpecial || order != 0; l.any {
		l.op |= order | t.number*typeUnit
	}
	return err
}

// treeBits returns the bits to set in that word if the results of a tree can differ from those of the
// order of ranks. With two ranks both are the same, except for the rounding of averages.
func (l *Launch) treeBits() (uint32, error) {
	if l.Ranks&(l.Ranks-1) != 0 {
		return 0, fmt.Errorf("%w for the formula %v with %d ranks: the number of ranks must be a power "+
			"of two", errNoKernel, l.Formula, l.Ranks)
	}
	rounds := l.Formula == driver.RoundedTree && l.DataType.Size() == 2
	switch {
	case !l.DataType.Float(), l.ReduceOp.Selects():
		return 0, nil
	case rounds && (l.Ranks > 2 || l.ReduceOp.Divides()):
		return orderTree | orderRounded, nil
	case l.Ranks > 2:
		return orderTree, nil
	}
	return 0, nil
}

// kernelName returns the name of a family's kernel for the call. There are kernels for 2 ranks, for 4
// ranks, and for any number up to 8.
func (l *Launch) kernelName(family string) string {
	ranks := 8
	if l.Ranks == 2 || l.Ranks == 4 {
		ranks = l.Ranks
	}
	if l.Operation.Reduces() {
		return fmt.Sprintf("%s_%s_%d", family, types[l.DataType].name, ranks)
	}
	return fmt.Sprintf("%s_%d", family, ranks)
}

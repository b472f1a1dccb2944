package kernels

import (
	"fmt"

	"symmem/driver"
)

// types lists the types that kernels can reduce. If a type has specialized kernels, name is the
// part of the kernels' names that identifies the type.
var types = map[driver.DataType]struct {
	number uint32
	name   string
	signed bool // an unsigned type that uses the kernels of a signed type
}{
	driver.Float32: {number: 0, name: "f32"}, driver.Float64: {number: 1},
	driver.Float16: {number: 2, name: "f16"}, driver.BFloat16: {number: 3, name: "bf16"},
	driver.Int8: {number: 4}, driver.Uint8: {number: 5},
	driver.Int32: {number: 6, name: "i32"}, driver.Int64: {number: 7},
	driver.Uint32: {number: 6, name: "i32", signed: true},
	driver.Uint64: {number: 7, signed: true},
}

// Launch.op combines the reduction's number (enum Op of call.h) and, for generic kernels, bits of
// enum Order and the type's number, multiplied by typeUnit.
const (
	lastSpecialized = 2 // Max; operations with higher numbers have no specialized kernels

	orderTree    = 8
	orderRounded = 16
	typeUnit     = 32
)

func (l *Launch) setReduction() (err error) {
	if !Reduces(l.DataType, l.ReduceOp) {
		return fmt.Errorf("%w for %v of %v with %v", errNoKernel, l.Operation, l.DataType, l.ReduceOp)
	}
	t := types[l.DataType]
	op, _ := l.ReduceOp.Kernel().Number()
	if l.op = uint32(op); l.ReduceOp.Divides() {
		l.divisor = uint32(l.Ranks)
	}
	order := uint32(0)
	if l.Formula == driver.Tree || l.Formula == driver.RoundedTree {
		order, err = l.treeBits()
	}
	if l.generic = t.name == "" || op > lastSpecialized || order != 0; l.generic {
		l.op |= order | t.number*typeUnit
	}
	return err
}

// Reduces reports whether kernels support a reduction of a type.
func Reduces(t driver.DataType, op driver.ReduceOp) bool {
	kernel, known := types[t]
	return known && op.Kernel() != 0 && (!kernel.signed || !op.ComparesUnsigned(t))
}

// treeBits returns the bits of enum Order for a tree formula. It returns 0 if a tree gives the same
// results as the order of ranks. With two ranks, the results differ only for averages, which a
// rounded tree rounds differently.
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

// kernelName returns the name of the call's kernel in a family.
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

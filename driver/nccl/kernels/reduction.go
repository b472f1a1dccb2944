package kernels

import (
	"fmt"

	"symmem/driver"
)

// types are those that kernels reduce: how kernels of any reduction know them, and, of the types
// that have kernels of their own, the names in these, which reduce with all but Prod in the order
// of ranks.
var types = map[driver.DataType]struct {
	number uint32
	name   string
}{
	driver.Float32: {0, "f32"}, driver.Float64: {1, ""}, driver.Float16: {2, "f16"},
	driver.BFloat16: {3, "bf16"}, driver.Int8: {4, ""}, driver.Uint8: {5, ""},
	driver.Int32: {6, "i32"}, driver.Int64: {7, ""},
}

// The reductions of the kernels: enum Op of call.h, and what kernels of any reduction find there,
// too: enum Order, and the number of the type.
const (
	opSum = iota
	opMin
	opMax
	opProd

	orderTree    = 8
	orderRounded = 16
	typeUnit     = 32
)

// reduction says what kernels are told of a call's reduction.
func (r *Request) reduction(l *Launch) error {
	t, known := types[r.DataType]
	if !known {
		return fmt.Errorf("%w for %v of %v", errNone, r.Operation, r.DataType)
	}
	switch r.ReduceOp {
	case driver.Sum:
		l.op = opSum
	case driver.Avg:
		l.op, l.divisor = opSum, uint32(r.Ranks)
	case driver.Prod:
		l.op = opProd
	case driver.Min:
		l.op = opMin
	case driver.Max:
		l.op = opMax
	default:
		return fmt.Errorf("%w for %v with %v", errNone, r.Operation, r.ReduceOp)
	}
	order, err := r.order()
	if l.any = t.name == "" || l.op == opProd || order != 0; l.any {
		l.op |= order | t.number*typeUnit
	}
	return err
}

// order is what is added to a reduction whose formula gives other bits than the order of ranks.
// That of two ranks is a tree, too.
func (r *Request) order() (uint32, error) {
	if r.Formula != driver.Tree && r.Formula != driver.RoundedTree {
		return 0, nil
	}
	if r.Ranks&(r.Ranks-1) != 0 {
		return 0, fmt.Errorf("%w for the formula %v of %d ranks: a power of two is wanted", errNone,
			r.Formula, r.Ranks)
	}
	rounds := r.Formula == driver.RoundedTree && r.DataType.Size() == 2
	switch {
	case !r.DataType.Float(), r.ReduceOp == driver.Min, r.ReduceOp == driver.Max:
		return 0, nil
	case rounds && (r.Ranks > 2 || r.ReduceOp == driver.Avg):
		return orderTree | orderRounded, nil
	case r.Ranks > 2:
		return orderTree, nil
	}
	return 0, nil
}

// kernel is the name of a kernel for the request. Kernels are there for 2 and 4 ranks, and for any
// number up to 8.
func (r *Request) kernel(family string) string {
	ranks := 8
	if r.Ranks == 2 || r.Ranks == 4 {
		ranks = r.Ranks
	}
	if r.Operation.Reduces() {
		return fmt.Sprintf("%s_%s_%d", family, types[r.DataType].name, ranks)
	}
	return fmt.Sprintf("%s_%d", family, ranks)
}

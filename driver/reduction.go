package driver

import (
	"fmt"
	"strings"

	"symmem/internal/reduce"
)

//go:generate go run ./gen

// ReduceOp is a reduction, which combines an element of each rank. For example, the Sum of the
// elements 1, 2 and 4 of three ranks is 7. Float16 and BFloat16 are accumulated in float32 and
// rounded once, except with RoundedTree.
type ReduceOp uint8

// The reductions, numbered as in symmem.h. Add a new one at the end, and to the table below.
const (
	Sum ReduceOp = iota
	Prod
	Min
	Max
	// Avg divides the sum by the number of ranks. Integers truncate towards zero.
	Avg
	// BAnd, BOr and BXor are bitwise operations on integers, only on the host backend.
	BAnd
	BOr
	BXor
	// PremulSum multiplies every float by Call.Factor and adds the products. NCCL rounds the factor
	// and the products to the element type. The host backend rounds them to float32, except for
	// Float64.
	PremulSum
	ReduceOps = iota // number of reductions
)

// Code is a number plus 1, or 0 without a number.
type Code uint8

func codeOf[T ~int | ~uint8](number T) Code { return Code(number) + 1 }

// Number returns the number. If there is none, ok is false.
func (c Code) Number() (number uint8, ok bool) { return uint8(c - 1), c != 0 }

// reduction holds the results of the methods of a ReduceOp.
type reduction struct {
	name       string
	alias      string
	note       string
	combine    reduce.Op
	isAverage  bool
	hasFactor  bool
	isMinOrMax bool
	logical    Code // a ReduceOp
	nccl       Code // an ncclRedOp_t
	kernel     Code // an Op of driver/nccl/kernels/src/call.h
}

const bitwiseNote = "bitwise, of integers, on the host backend"

var reductions = [ReduceOps]reduction{
	Sum: {
		name: "sum", combine: reduce.Sum, logical: codeOf(Max), nccl: codeOf(0), kernel: codeOf(0),
	},
	Prod: {
		name: "prod", alias: "product", combine: reduce.Prod, logical: codeOf(Min), nccl: codeOf(1),
		kernel: codeOf(3),
	},
	Min: {
		name: "min", combine: reduce.Min, isMinOrMax: true, logical: codeOf(Min), nccl: codeOf(3),
		kernel: codeOf(1),
	},
	Max: {
		name: "max", combine: reduce.Max, isMinOrMax: true, logical: codeOf(Max), nccl: codeOf(2),
		kernel: codeOf(2),
	},
	Avg:  {name: "avg", combine: reduce.Sum, isAverage: true, nccl: codeOf(4), kernel: codeOf(0)},
	BAnd: {name: "band", note: bitwiseNote, combine: reduce.BAnd, logical: codeOf(Min)},
	BOr:  {name: "bor", note: bitwiseNote, combine: reduce.BOr, logical: codeOf(Max)},
	BXor: {name: "bxor", note: bitwiseNote, combine: reduce.BXor, logical: codeOf(BXor)},
	PremulSum: {
		name: "premul_sum", note: "for symmem_premul_sum", combine: reduce.Sum, hasFactor: true,
	},
}

var unknownReduction = reduction{name: "redop(?)"}

func (op ReduceOp) properties() *reduction {
	if op < ReduceOps {
		return &reductions[op]
	}

	return &unknownReduction
}

// String returns the reduction's name in nccl-tests.
func (op ReduceOp) String() string { return op.properties().name }

// Alias returns PyTorch's name of the reduction, or "" if it equals String.
func (op ReduceOp) Alias() string { return op.properties().alias }

// Note returns a remark on the reduction for users, or "".
func (op ReduceOp) Note() string { return op.properties().note }

// Combine returns the operation that combines two elements.
func (op ReduceOp) Combine() reduce.Op { return op.properties().combine }

// IsAverage reports whether the combined elements are divided by the number of ranks.
func (op ReduceOp) IsAverage() bool { return op.properties().isAverage }

// HasFactor reports whether the elements are multiplied by Call.Factor before they are combined.
func (op ReduceOp) HasFactor() bool { return op.properties().hasFactor }

// IsMinOrMax reports whether the reduction is Min or Max.
func (op ReduceOp) IsMinOrMax() bool { return op.properties().isMinOrMax }

// Logical returns the ReduceOp that gives PyTorch's result for booleans, stored as bytes 0 and 1.
// For example, PyTorch's sum of booleans is a logical or, which is Max.
func (op ReduceOp) Logical() Code { return op.properties().logical }

// NCCL returns the ncclRedOp_t value for the reduction.
func (op ReduceOp) NCCL() Code { return op.properties().nccl }

// Kernel returns the reduction's number in symmem's GPU kernels.
func (op ReduceOp) Kernel() Code { return op.properties().kernel }

// Accepts reports whether the reduction is defined for a data type.
func (op ReduceOp) Accepts(t DataType) bool {
	switch {
	case op >= ReduceOps:
		return false
	case op.HasFactor() && !t.Float():
		return false
	default:
		return op.Combine().Accepts(t)
	}
}

// IsSupportedEverywhere reports whether all paths of all backends support the reduction of a type.
func (op ReduceOp) IsSupportedEverywhere(t DataType) bool {
	_, hasNCCL := op.NCCL().Number()
	_, hasKernel := op.Kernel().Number()
	switch {
	case !op.Accepts(t) || !hasNCCL || !hasKernel:
		return false
	case t == Int16 || t == Uint16:
		return false // NCCL has no such types
	case op.NeedsUnsigned(t):
		return false // symmem's kernels treat unsigned integers as signed
	default:
		return true
	}
}

// NeedsUnsigned reports whether t is unsigned, and signed elements with the same bits would have
// another result. A sum, for example, would have the same bits.
func (op ReduceOp) NeedsUnsigned(t DataType) bool {
	return t.Unsigned() && (op.IsMinOrMax() || op.IsAverage())
}

// ReductionsOf returns the reductions that are defined for a type, in ascending order.
func ReductionsOf(t DataType) []ReduceOp {
	var all []ReduceOp
	for op := range ReduceOp(ReduceOps) {
		if op.Accepts(t) {
			all = append(all, op)
		}
	}

	return all
}

// ReduceOpNames returns the names of all reductions in ascending order.
func ReduceOpNames() []string {
	var names []string
	for i := range reductions {
		names = append(names, reductions[i].name)
	}

	return names
}

// ParseReduceOp returns the reduction whose String is name.
func ParseReduceOp(name string) (ReduceOp, error) {
	for i := range reductions {
		if reductions[i].name == name {
			return ReduceOp(i), nil
		}
	}

	return 0, fmt.Errorf("unknown reduction %q: use one of %s", name,
		strings.Join(ReduceOpNames(), ", "))
}

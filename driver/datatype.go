package driver

import (
	"fmt"
	"slices"
	"strings"

	"symmem/internal/reduce"
)

// DataType is the type of the elements of a collective.
type DataType = reduce.DataType

// The data types.
const (
	Float64  = reduce.Float64
	Float32  = reduce.Float32
	Float16  = reduce.Float16
	BFloat16 = reduce.BFloat16
	Int8     = reduce.Int8
	Int32    = reduce.Int32
	Int64    = reduce.Int64
	Uint8    = reduce.Uint8
)

// ReduceOp is the function of a reduction. Ranks are always combined in the order of the group, so
// that every rank and every run gets the same bits. Float16 and BFloat16 accumulate in float32 and
// round once.
type ReduceOp uint8

// The reduce operations. Those of package reduce come first, in its order.
const (
	Sum  = ReduceOp(reduce.Sum)
	Prod = ReduceOp(reduce.Prod)
	Min  = ReduceOp(reduce.Min)
	Max  = ReduceOp(reduce.Max)
	// Avg is the sum divided by the number of ranks; integers truncate towards zero.
	Avg = ReduceOp(reduce.OpCount)
	// ReduceOps is their number.
	ReduceOps = reduce.OpCount + 1
)

var reduceOpNames = [ReduceOps]string{"sum", "prod", "min", "max", "avg"}

// String returns the operation's name, as nccl-tests writes it.
func (op ReduceOp) String() string {
	if op < ReduceOps {
		return reduceOpNames[op]
	}
	return "redop(?)"
}

// ParseReduceOp reads a name as String writes it.
func ParseReduceOp(name string) (ReduceOp, error) {
	if i := slices.Index(reduceOpNames[:], name); i >= 0 {
		return ReduceOp(i), nil
	}
	return 0, fmt.Errorf("unknown reduce operation %q: one of %s",
		name, strings.Join(reduceOpNames[:], ", "))
}

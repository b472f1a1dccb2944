package binding

import (
	"fmt"

	"symmem"
)

// The numbers of symmem.h, in its order. They are part of the interface, whatever those of Go are.
var (
	types = []symmem.DataType{
		symmem.Float64, symmem.Float32, symmem.Float16, symmem.BFloat16,
		symmem.Int8, symmem.Int32, symmem.Int64, symmem.Uint8,
	}
	reductions = []symmem.ReduceOp{
		symmem.Sum, symmem.Prod, symmem.Min, symmem.Max, symmem.Avg,
	}
	operations = []symmem.Operation{
		symmem.OpAllReduce, symmem.OpAllGather, symmem.OpReduceScatter, symmem.OpBroadcast,
		symmem.OpReduce, symmem.OpAllToAll, symmem.OpSend, symmem.OpRecv, symmem.OpBarrier,
		symmem.OpAllToAllV,
	}
	values = []symmem.ValueOperation{
		0, symmem.ValueAgree, symmem.ValueAny, symmem.ValueAll, symmem.ValueMin, symmem.ValueMax,
		symmem.ValueSum, symmem.ValueStep, symmem.ValueAgreeFloat,
	}
	paths = []symmem.PathChoice{
		symmem.PathDefault, symmem.PathAuto, symmem.PathPlain, symmem.PathWindow,
		symmem.PathDirect,
	}
	levels = []symmem.CheckLevel{
		symmem.CheckDefault, symmem.CheckOff, symmem.CheckRegistration, symmem.CheckEvery,
	}
)

// term finds what a number stands for.
func term[T any](what string, table []T, number int) (T, error) {
	if number >= 0 && number < len(table) {
		return table[number], nil
	}
	var none T
	return none, fmt.Errorf("%s %d: numbers are from 0 to %d: %w",
		what, number, len(table)-1, symmem.ErrInvalid)
}

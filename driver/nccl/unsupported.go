package nccl

import (
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/nccl"
)

// dataTypes maps types to those passed to NCCL, which can reduce all types except movedTypes.
var dataTypes = map[driver.DataType]nccl.DataType{
	driver.Float64: nccl.Float64, driver.Float32: nccl.Float32, driver.Float16: nccl.Float16,
	driver.BFloat16: nccl.BFloat16, driver.Int8: nccl.Int8, driver.Int32: nccl.Int32,
	driver.Int64: nccl.Int64, driver.Uint8: nccl.Uint8, driver.Uint32: nccl.Uint32,
	driver.Uint64: nccl.Uint64, driver.Int16: nccl.Float16, driver.Uint16: nccl.Float16,
}

// movedTypes lists types that NCCL does not know, but moves as another type of the same size.
var movedTypes = []driver.DataType{driver.Int16, driver.Uint16}

var errNoNorm = fmt.Errorf("NCCL has no RMSNorm, so the call needs the direct path (path auto or "+
	"direct): %w", driver.ErrUnsupported)

var errNoRoute = fmt.Errorf("NCCL does not exchange rows by experts, so the call needs the "+
	"direct path, which works within one machine (path auto or direct): %w", driver.ErrUnsupported)

func checkTypes(call *driver.Call) error {
	_, hasOp := call.ReduceOp.NCCL().Number()
	hasOp = hasOp || call.ReduceOp.HasFactor()
	reduces := hasOp && !slices.Contains(movedTypes, call.DataType)
	if _, hasType := dataTypes[call.DataType]; hasType && (!call.Operation.Reduces() || reduces) {
		return nil
	}

	return fmt.Errorf("NCCL has no %v of %v with %v: %w", call.Operation, call.DataType,
		call.ReduceOp, driver.ErrUnsupported)
}

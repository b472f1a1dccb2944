package symmem

import "symmem/driver"

// DataType is the type of the elements of a collective.
type DataType = driver.DataType

// The data types.
const (
	Float64  = driver.Float64
	Float32  = driver.Float32
	Float16  = driver.Float16
	BFloat16 = driver.BFloat16
	Int8     = driver.Int8
	Int32    = driver.Int32
	Int64    = driver.Int64
	Uint8    = driver.Uint8
	Int16    = driver.Int16
	Uint16   = driver.Uint16
	Uint32   = driver.Uint32
	Uint64   = driver.Uint64
)

// ReduceOp selects a reduction. See driver.ReduceOp for rounding and order.
type ReduceOp = driver.ReduceOp

// Operation is a collective operation.
type Operation = driver.Operation

package driver

import "symmem/internal/reduce"

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
	Int16    = reduce.Int16
	Uint16   = reduce.Uint16
	Uint32   = reduce.Uint32
	Uint64   = reduce.Uint64
)

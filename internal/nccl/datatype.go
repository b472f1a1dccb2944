package nccl

// DataType is the element type of a collective (ncclDataType_t).
type DataType int32

// The data types. Their values have not changed since NCCL 2.10.
const (
	Int8     DataType = 0
	Uint8    DataType = 1
	Int32    DataType = 2
	Uint32   DataType = 3
	Int64    DataType = 4
	Uint64   DataType = 5
	Float16  DataType = 6
	Float32  DataType = 7
	Float64  DataType = 8
	BFloat16 DataType = 9
)

// ReduceOp is a reduction operation (ncclRedOp_t).
type ReduceOp int32

// The reduction operations.
const (
	Sum  ReduceOp = 0
	Prod ReduceOp = 1
	Max  ReduceOp = 2
	Min  ReduceOp = 3
	Avg  ReduceOp = 4
)

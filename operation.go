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
)

// ReduceOp is the function of a reduction. See driver.ReduceOp for rounding and order.
type ReduceOp = driver.ReduceOp

// The reduce operations.
const (
	Sum  = driver.Sum
	Prod = driver.Prod
	Min  = driver.Min
	Max  = driver.Max
	Avg  = driver.Avg
)

// Operation is a collective operation.
type Operation = driver.Operation

// The collective operations, as Explain takes them.
const (
	OpAllReduce     = driver.AllReduce
	OpAllGather     = driver.AllGather
	OpReduceScatter = driver.ReduceScatter
	OpBroadcast     = driver.Broadcast
	OpReduce        = driver.Reduce
	OpAllToAll      = driver.AllToAll
	OpSend          = driver.Send
	OpRecv          = driver.Recv
	OpBarrier       = driver.Barrier
	OpAllToAllV     = driver.AllToAllV
)

// OpAllReduceRMSNorm names AllReduceRMSNorm in statistics and errors. Do and Explain do not take
// it.
const OpAllReduceRMSNorm = driver.AllReduceRMSNorm

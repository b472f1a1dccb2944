package nccl

import (
	"symmem/internal/cuda"
	"symmem/internal/dl"
)

// Invocation is a prepared call of a collective, a Send or a Recv. It can be queued repeatedly:
//
//	sum := library.AllReduce(...) // only prepares the call
//	err := sum.On(stream)         // queues it
//
// An Invocation is not safe for concurrent use.
type Invocation struct {
	binding     *binding
	function    function
	streamIndex int           // index of the last C argument, the stream
	cCall       dl.Invocation // zero if the library lacks the function
}

// prepare prepares a call. args contains all arguments except the stream.
func (b *binding) prepare(f function, args ...uintptr) Invocation {
	i := Invocation{binding: b, function: f, streamIndex: len(args)}
	if symbol := b.symbols[f]; symbol != 0 {
		i.cCall = symbol.Prepare(&b.stepBefore, args...)
	}

	return i
}

// Prepared reports whether i is not the zero Invocation.
func (i *Invocation) Prepared() bool { return i.binding != nil }

// On queues the call on a stream.
func (i *Invocation) On(stream cuda.Stream) error {
	lacksFunction := !i.cCall.IsSet()
	if lacksFunction {
		return i.binding.newVersionError(i.function)
	}

	i.cCall.Set(i.streamIndex, uintptr(stream))
	status, isCalled := i.cCall.Call()
	return i.binding.resultError(i.function, status, isCalled)
}

// AllReduce reduces count elements from each rank's sendAddress, and stores the result at every
// rank's recvAddress, which may equal sendAddress.
func (l *Library) AllReduce(
	sendAddress, recvAddress uintptr, count int64, t DataType, op ReduceOp, comm Comm,
) Invocation {
	return l.prepare(allReduce, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(op),
		uintptr(comm))
}

// AllGather stores count elements of each rank, in rank order, at every rank's recvAddress. In
// place, sendAddress is that of the rank's elements in the output.
func (l *Library) AllGather(
	sendAddress, recvAddress uintptr, count int64, t DataType, comm Comm,
) Invocation {
	return l.prepare(allGather, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(comm))
}

// ReduceScatter reduces inputs of ranks*count elements, and stores count elements of the result on
// each rank. In place, recvAddress is that of the rank's elements in the input.
func (l *Library) ReduceScatter(
	sendAddress, recvAddress uintptr, count int64, t DataType, op ReduceOp, comm Comm,
) Invocation {
	return l.prepare(reduceScatter, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(op),
		uintptr(comm))
}

// Broadcast copies count elements from the root's sendAddress to every rank's recvAddress.
func (l *Library) Broadcast(
	sendAddress, recvAddress uintptr, count int64, t DataType, root int, comm Comm,
) Invocation {
	return l.prepare(broadcast, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(root),
		uintptr(comm))
}

// Reduce is an AllReduce that stores the result only at the root's recvAddress.
func (l *Library) Reduce(
	sendAddress, recvAddress uintptr, count int64, t DataType, op ReduceOp, root int, comm Comm,
) Invocation {
	return l.prepare(reduce, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(op),
		uintptr(root), uintptr(comm))
}

// AlltoAll sends count elements to each rank, and receives count elements from each. sendAddress
// and recvAddress must differ. NCCL before 2.28.3 lacks the function.
func (l *Library) AlltoAll(
	sendAddress, recvAddress uintptr, count int64, t DataType, comm Comm,
) Invocation {
	return l.prepare(alltoAll, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(comm))
}

// Send sends count elements to a peer, which must call Recv with the same count and type. Ranks
// that exchange data must call Send and Recv in one group (see GroupStart).
func (l *Library) Send(
	address uintptr, count int64, t DataType, peer int, comm Comm,
) Invocation {
	return l.prepare(send, address, uintptr(count), uintptr(t), uintptr(peer), uintptr(comm))
}

// Recv receives count elements from a peer, which must call Send with the same count and type.
func (l *Library) Recv(
	address uintptr, count int64, t DataType, peer int, comm Comm,
) Invocation {
	return l.prepare(recv, address, uintptr(count), uintptr(t), uintptr(peer), uintptr(comm))
}

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

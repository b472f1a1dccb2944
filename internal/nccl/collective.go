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
	streamIndex int           // position of the stream among the C arguments
	cCall       dl.Invocation // zero if the library lacks the function
}

// Prepared reports whether i is not the zero value.
func (i *Invocation) Prepared() bool { return i.binding != nil }

// On queues the call on a stream.
func (i *Invocation) On(stream cuda.Stream) error {
	isMissing := !i.cCall.IsSet()
	if isMissing {
		return i.binding.checkAvailable(i.function)
	}

	i.cCall.Set(i.streamIndex, uintptr(stream))
	status, isCalled := i.cCall.Call()
	isSuccess := isCalled && Result(status) == Success
	if isSuccess {
		return nil
	}

	return i.binding.callError(i.function, status, isCalled)
}

// AllReduce reduces the count elements of each rank to count elements at every rank's recvAddress,
// which may equal sendAddress.
func (l *Library) AllReduce(
	sendAddress, recvAddress uintptr, count int64, t DataType, op ReduceOp, comm Comm,
) Invocation {
	return l.prepare(allReduce, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(op),
		uintptr(comm))
}

// AllGather concatenates the count elements of each rank, in rank order, at every rank's
// recvAddress. sendAddress may be the place of this rank's elements in the output.
func (l *Library) AllGather(
	sendAddress, recvAddress uintptr, count int64, t DataType, comm Comm,
) Invocation {
	return l.prepare(allGather, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(comm))
}

// ReduceScatter reduces count elements for each rank, from inputs with count elements per rank.
// recvAddress may be the place of this rank's elements in the input.
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

// Reduce reduces the count elements of each rank to count elements at the root's recvAddress.
func (l *Library) Reduce(
	sendAddress, recvAddress uintptr, count int64, t DataType, op ReduceOp, root int, comm Comm,
) Invocation {
	return l.prepare(reduce, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(op),
		uintptr(root), uintptr(comm))
}

// AlltoAll exchanges count elements with each rank. sendAddress and recvAddress must differ. NCCL
// before 2.28.3 lacks the function.
func (l *Library) AlltoAll(
	sendAddress, recvAddress uintptr, count int64, t DataType, comm Comm,
) Invocation {
	return l.prepare(alltoAll, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(comm))
}

// Send sends count elements to a peer, which must call Recv with the same count and type. Sends and
// Recvs that depend on each other must be in one group (see GroupStart).
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

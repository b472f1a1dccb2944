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
	streamIndex int           // index of the stream in the arguments
	invocation  dl.Invocation // zero if the library lacks the function
}

// Prepared reports whether i is not the zero value.
func (i *Invocation) Prepared() bool { return i.binding != nil }

// On queues the call on a stream.
func (i *Invocation) On(stream cuda.Stream) error {
	isMissing := !i.invocation.IsSet()
	if isMissing {
		return i.binding.checkAvailable(i.function)
	}

	i.invocation.Set(i.streamIndex, uintptr(stream))
	status, isCalled := i.invocation.Call()
	isSuccess := isCalled && Result(status) == Success
	if isSuccess {
		return nil
	}

	return i.binding.callError(i.function, status, isCalled)
}

// AllReduce reduces count elements of all ranks into recvAddress, which may equal sendAddress.
func (l *Library) AllReduce(
	sendAddress, recvAddress uintptr, count int64, t DataType, op ReduceOp, comm Comm,
) Invocation {
	return l.prepare(allReduce, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(op),
		uintptr(comm))
}

// AllGather concatenates count elements of each rank at recvAddress. The input can be this rank's
// part of the output.
func (l *Library) AllGather(
	sendAddress, recvAddress uintptr, count int64, t DataType, comm Comm,
) Invocation {
	return l.prepare(allGather, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(comm))
}

// ReduceScatter reduces count elements for each rank. The output can be this rank's part of the
// input.
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

// Reduce reduces count elements of all ranks into the root's recvAddress.
func (l *Library) Reduce(
	sendAddress, recvAddress uintptr, count int64, t DataType, op ReduceOp, root int, comm Comm,
) Invocation {
	return l.prepare(reduce, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(op),
		uintptr(root), uintptr(comm))
}

// AlltoAll exchanges count elements with each rank. The addresses must differ. It requires NCCL
// 2.28.3.
func (l *Library) AlltoAll(
	sendAddress, recvAddress uintptr, count int64, t DataType, comm Comm,
) Invocation {
	return l.prepare(alltoAll, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(comm))
}

// Send sends count elements to a peer's Recv with the same count and type. Sends and Recvs that
// depend on each other must be in one group (see GroupStart).
func (l *Library) Send(
	address uintptr, count int64, t DataType, peer int, comm Comm,
) Invocation {
	return l.prepare(send, address, uintptr(count), uintptr(t), uintptr(peer), uintptr(comm))
}

// Recv receives count elements from a peer's Send with the same count and type.
func (l *Library) Recv(
	address uintptr, count int64, t DataType, peer int, comm Comm,
) Invocation {
	return l.prepare(recv, address, uintptr(count), uintptr(t), uintptr(peer), uintptr(comm))
}

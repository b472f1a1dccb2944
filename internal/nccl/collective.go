package nccl

import (
	"symmem/internal/cuda"
	"symmem/internal/dl"
)

// Invocation is a collective, a Send or a Recv that can be queued repeatedly. Creating it does
// not call the library; calling On does. An Invocation is not safe for concurrent use.
type Invocation struct {
	binding    *binding
	function   function
	stream     int // index of the stream argument, which is always the last
	invocation dl.Invocation
}

// Prepared reports whether the invocation is not the zero value.
func (i *Invocation) Prepared() bool { return i.binding != nil }

// On queues the invocation on a stream. It does not allocate unless the library returns an error.
func (i *Invocation) On(stream cuda.Stream) error {
	if !i.invocation.Ready() {
		return i.binding.missing(i.function)
	}
	i.invocation.Set(i.stream, uintptr(stream))
	status, ok := i.invocation.Status()
	if !ok || Result(status) != Success {
		return i.binding.failure(i.function, status, ok)
	}
	return nil
}

// AllReduce reduces count elements of all ranks and stores the result at recvAddress on every rank.
// The two addresses may be the same.
func (l *Library) AllReduce(
	sendAddress, recvAddress uintptr, count int64, t DataType, op ReduceOp, comm Comm,
) Invocation {
	return l.prepare(allReduce, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(op),
		uintptr(comm))
}

// AllGather concatenates count elements from each rank at recvAddress on every rank. It works in
// place if sendAddress is the address of this rank's part of the result.
func (l *Library) AllGather(
	sendAddress, recvAddress uintptr, count int64, t DataType, comm Comm,
) Invocation {
	return l.prepare(allGather, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(comm))
}

// ReduceScatter reduces one part of count elements for each rank, and stores each rank's part at
// that rank's recvAddress. It works in place if recvAddress is the address of this rank's part
// of the input.
func (l *Library) ReduceScatter(
	sendAddress, recvAddress uintptr, count int64, t DataType, op ReduceOp, comm Comm,
) Invocation {
	return l.prepare(reduceScatter, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(op),
		uintptr(comm))
}

// Broadcast copies count elements from the root's sendAddress to recvAddress on every rank.
func (l *Library) Broadcast(
	sendAddress, recvAddress uintptr, count int64, t DataType, root int, comm Comm,
) Invocation {
	return l.prepare(broadcast, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(root),
		uintptr(comm))
}

// Reduce reduces count elements of all ranks and stores the result at the root's recvAddress.
func (l *Library) Reduce(
	sendAddress, recvAddress uintptr, count int64, t DataType, op ReduceOp, root int, comm Comm,
) Invocation {
	return l.prepare(reduce, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(op),
		uintptr(root), uintptr(comm))
}

// AlltoAll sends count elements to each rank and receives count elements from each. It does not
// work in place. It requires NCCL 2.28.3; with older versions, use a group of Send and Recv
// calls instead.
func (l *Library) AlltoAll(
	sendAddress, recvAddress uintptr, count int64, t DataType, comm Comm,
) Invocation {
	return l.prepare(alltoAll, sendAddress, recvAddress, uintptr(count), uintptr(t), uintptr(comm))
}

// Send sends count elements to a peer. The peer's Recv must have the same count and type. Send
// and Recv calls that depend on each other must be in the same group.
func (l *Library) Send(
	address uintptr, count int64, t DataType, peer int, comm Comm,
) Invocation {
	return l.prepare(send, address, uintptr(count), uintptr(t), uintptr(peer), uintptr(comm))
}

// Recv receives count elements from a peer.
func (l *Library) Recv(
	address uintptr, count int64, t DataType, peer int, comm Comm,
) Invocation {
	return l.prepare(recv, address, uintptr(count), uintptr(t), uintptr(peer), uintptr(comm))
}

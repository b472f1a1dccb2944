package nccl

import "symmem/internal/cuda"

// AllReduce reduces count elements of all ranks into recv on every rank; recv may be send.
func (l *Library) AllReduce(
	sendAt, recvAt uintptr, count int64, t DataType, op ReduceOp, comm Comm, stream cuda.Stream,
) error {
	return l.call(allReduce, sendAt, recvAt, uintptr(count), uintptr(t), uintptr(op),
		uintptr(comm), uintptr(stream))
}

// AllGather puts count elements of each rank one after the other into recv on every rank. In
// place, send is this rank's part of recv.
func (l *Library) AllGather(
	sendAt, recvAt uintptr, count int64, t DataType, comm Comm, stream cuda.Stream,
) error {
	return l.call(allGather, sendAt, recvAt, uintptr(count), uintptr(t), uintptr(comm),
		uintptr(stream))
}

// ReduceScatter reduces as many parts of count elements as there are ranks, and leaves each rank
// its own. In place, recv is this rank's part of send.
func (l *Library) ReduceScatter(
	sendAt, recvAt uintptr, count int64, t DataType, op ReduceOp, comm Comm, stream cuda.Stream,
) error {
	return l.call(reduceScatter, sendAt, recvAt, uintptr(count), uintptr(t), uintptr(op),
		uintptr(comm), uintptr(stream))
}

// Broadcast copies count elements of the root's send into recv on every rank.
func (l *Library) Broadcast(
	sendAt, recvAt uintptr, count int64, t DataType, root int, comm Comm, stream cuda.Stream,
) error {
	return l.call(broadcast, sendAt, recvAt, uintptr(count), uintptr(t), uintptr(root),
		uintptr(comm), uintptr(stream))
}

// Reduce reduces count elements of all ranks into the root's recv.
func (l *Library) Reduce(
	sendAt, recvAt uintptr, count int64, t DataType, op ReduceOp, root int, comm Comm,
	stream cuda.Stream,
) error {
	return l.call(reduce, sendAt, recvAt, uintptr(count), uintptr(t), uintptr(op), uintptr(root),
		uintptr(comm), uintptr(stream))
}

// AlltoAll sends each rank its part of count elements and receives one from each. It is not in
// place and needs NCCL 2.28.3; a group of Send and Recv does the same everywhere.
func (l *Library) AlltoAll(
	sendAt, recvAt uintptr, count int64, t DataType, comm Comm, stream cuda.Stream,
) error {
	return l.call(alltoAll, sendAt, recvAt, uintptr(count), uintptr(t), uintptr(comm),
		uintptr(stream))
}

// Send sends count elements to a peer, whose Recv has the same count and type. Send and Recv that
// need each other to go on are put in one group.
func (l *Library) Send(
	at uintptr, count int64, t DataType, peer int, comm Comm, stream cuda.Stream,
) error {
	return l.call(send, at, uintptr(count), uintptr(t), uintptr(peer), uintptr(comm),
		uintptr(stream))
}

// Recv receives count elements from a peer.
func (l *Library) Recv(
	at uintptr, count int64, t DataType, peer int, comm Comm, stream cuda.Stream,
) error {
	return l.call(recv, at, uintptr(count), uintptr(t), uintptr(peer), uintptr(comm),
		uintptr(stream))
}

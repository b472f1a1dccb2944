// Package host is the backend that needs no GPU: each rank is a process of one machine (or, in
// tests, a goroutine), device memory is shared memory, and collectives run on the processor.
//
// # Memory
//
// A segment is an anonymous shared file, mapped by its owner at the next offset of a reserved
// range of addresses. A window maps the segments of all ranks of a group into each of them;
// descriptors travel over a private Unix socket (package handoff). Peers are addressed as the
// peer's window base plus the caller's own offset, as NCCL does it.
//
// # How ranks meet
//
// The ranks of a group are joined by a Group of package control/shm: it has the steps in which
// collectives move, waits with deadlines, agreements and faults. Behind its control region lies
// what is the host's own: two staging buffers for each rank, used in turn as the lines of the steps
// are, and a pipe for each pair, which moves messages in frames. Collectives over windows need
// neither: a step before and a step after are their barriers.
//
// The states of a device, a communicator, a stream and a graph are documented with their types.
//
// # What is trusted
//
// Ranks map each other's segments and write into them, and trust each other with that. Windows are
// made only of segments of one key and size, and only of files that are as large. Frames of
// messages and tables of splits are read once and checked before they are believed: nonsense in
// them is an error, and no address.
//
// # Lock order
//
// A goroutine takes locks in this order, and those of control/shm after them. Builds with the tag
// invariants panic where one does not.
//
//	graph.mu
//	stream.mu
//	recvPipe.mu
//	sendPipe.mu
//	segment.mu
//	event.mu
//	leftWork.mu
//
// The first two are held while this rank waits for others: a launch holds its stream.mu (and the
// graph.mu of a graph) as long as the collective runs on the caller's thread. The others are not.
package host

// Package host implements the backend that needs no GPU: each rank is a process of one machine
// (or, in tests, a goroutine), device memory is shared memory, and collectives run on the
// processor.
//
// # Memory
//
// A segment is an anonymous shared file, mapped by its owner at the next offset of a reserved
// address range. A window maps the segments of all ranks of a group into each of them; descriptors
// are passed over a private Unix socket (package handoff). The address of peer memory is the base
// of the peer's window plus the caller's own offset, as in NCCL.
//
// # Synchronization
//
// A Group of package control/shm connects the ranks of a group: it provides the steps of
// collectives, waits with deadlines, agreements and faults. The host backend adds memory behind
// its control region: two staging buffers for each rank, which alternate like the lines of the
// steps, and a pipe for each pair of ranks, which carries messages in frames. Collectives over
// windows need neither: the steps before and after them are their barriers.
//
// The states of a device, a communicator, a stream and a graph are documented with their types.
//
// # Trust
//
// Ranks trust each other to map and write each other's segments. A window only consists of
// segments with the same key and size, backed by files of that size. Frames of messages and tables
// of splits are read once and checked before they are used: invalid contents are an error and
// never become an address.
//
// # Lock order
//
// A goroutine takes locks in this order, and those of control/shm after them. Builds with the tag
// invariants panic on a violation.
//
//	graph.mu
//	stream.mu
//	recvPipe.mu
//	sendPipe.mu
//	segment.mu
//	event.mu
//	leftWork.mu
//
// The first two are held while this rank waits for others: a launch holds stream.mu (and graph.mu)
// while the collective runs on the caller's thread. The others are not.
package host

// Package host implements the backend that needs no GPU. All ranks are processes on one machine
// (or, in tests, goroutines of one process), device memory is shared memory, and collectives run on
// the processor.
//
// # Memory
//
// A segment is an anonymous shared file, which its owner maps in a reserved address range. A window
// maps the segments of all ranks into every rank of the group. Ranks pass the file descriptors over
// a private Unix socket (package handoff).
//
// # Synchronization
//
// shm.Group provides the steps of collectives, waits with deadlines, agreements and faults. To its
// shared memory, the host backend adds two staging buffers for each rank, which alternate from step
// to step, and a pipe for each pair of ranks, which carries messages in frames. Collectives over
// windows use neither. They access the windows directly, between two steps that serve as barriers.
//
// # Trust
//
// Ranks trust each other to map and write each other's segments. All segments of a window have the
// same key and size, and files of at least that size. Message frames and the tables of splits are
// read once and checked before they are used to compute an address.
//
// # Lock order
//
// A goroutine acquires locks in the following order. It acquires locks of control/shm last. Builds
// with the tag invariants panic on a violation.
//
//	graph.mu
//	stream.mu
//	recvPipe.mu
//	sendPipe.mu
//	segment.mu
//	event.mu
//	abandonedWork.mu
//
// The first two may be held while this rank waits for other ranks, because a launch holds them
// while the collective runs on the caller's thread. The others are never held during such a wait.
package host

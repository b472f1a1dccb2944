// Package host implements the backend that needs no GPU. All ranks are processes on one machine
// (or, in tests, goroutines of one process), device memory is shared memory, and collectives run on
// the processor.
//
// # Memory
//
// A segment is an anonymous shared file, which its owner maps at an offset in a reserved address
// range. A window maps the segments of all ranks into every rank of the group. Ranks pass the
// file descriptors over a private Unix socket (package handoff). As in NCCL, a rank computes the
// address of a buffer on a peer from the base of the peer's window and from its own offset.
//
// # Synchronization
//
// shm.Group connects the ranks of a group: it provides the steps of collectives, waits with
// deadlines, agreements and faults. The group's shared memory begins with a control region. After
// it, the host backend adds two staging buffers for each rank, which alternate from step to step,
// and a pipe for each pair of ranks, which carries messages in frames. Collectives over windows use
// neither, but access the windows directly, between two steps that serve as barriers.
//
// The comments on stream and graph describe their states.
//
// # Trust
//
// Ranks trust each other to map and write each other's segments. A window consists only of
// segments with the same key and size, backed by files of at least that size. Message frames and
// the tables of splits are read once and checked before use, so that invalid contents cause an
// error and are never used to compute an address.
//
// # Lock order
//
// A goroutine acquires locks in the following order, and those of control/shm last. Builds with
// the tag invariants panic on a violation.
//
//	graph.mu
//	stream.mu
//	recvPipe.mu
//	sendPipe.mu
//	segment.mu
//	event.mu
//	abandonedWork.mu
//
// The first two may be held while this rank waits for other ranks: a launch holds stream.mu (and
// graph.mu) while the collective runs on the caller's thread. The others are never held during such
// a wait.
package host

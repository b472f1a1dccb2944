// Package host implements a backend without a GPU: ranks are processes on one machine (or, in
// tests, goroutines), device memory is shared memory, and collectives run on the CPU.
//
// A segment is an anonymous shared file. A window maps the segments of all ranks into every rank of
// the group. Ranks pass the file descriptors over a Unix socket (package handoff).
//
// shm.Group provides barriers, waits with deadlines, agreements and faults. The host backend adds
// two staging buffers for each rank and a pipe for each pair of ranks, which carries messages in
// frames. Collectives over windows use neither.
//
// Ranks trust each other to write each other's segments. Message frames and tables of splits are
// read once and checked before they are used to compute an address.
//
// # Lock order
//
// Locks are acquired in this order, those of control/shm last:
//
//	graph.mu
//	stream.mu
//	recvPipe.mu
//	sendPipe.mu
//	segment.mu
//	event.mu
//	abandonedWork.mu
//	lateStarts.mu
//
// The first two may be held while this rank waits for other ranks.
package host

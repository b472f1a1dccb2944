// Package symmem provides symmetric memory: every tensor has the same offset in the same segment on
// every rank, which the ranks verify. Collectives on it access the memory of peers directly.
//
// # Concepts
//
// A [Runtime] represents this process as a rank. The ranks of a [Group] communicate with each
// other; the first group is the world. A [Pool] allocates [Buffer]s in segments. The ranks of its
// domain, a group, must make the same allocations in the same order. Registering a segment with a
// group creates a window. A collective runs on one of several paths: the window path needs windows,
// the direct path needs GPUs, and the plain path accepts any memory; see [Group.Explain]. Work is
// queued on a [Stream] and may be captured into a [Graph].
//
// # Collectives
//
// Every rank of a group must make the same collective calls in the same order. A nil stream selects
// the default stream, and a nil context context.Background. Counts are numbers of elements. If a
// buffer has a part for each rank, the parts are in group order. For an in-place call, pass this
// rank's part of that buffer as the other buffer.
//
// If a call needs to register memory first, it waits for the other ranks. Its context limits only
// this wait; if it ends first, the call is not queued. Queued work runs until it completes or until
// [Options].Timeout expires.
//
// After [ErrOutOfRange], [ErrInvalid] or [ErrUnsupported], nothing is queued and the group remains
// usable. After [ErrClosed], it is closed. Any other error is a fault of the group, which the call,
// [Stream.Synchronize] or a wait for an [Event] returns; the output must not be used.
//
// # Messages
//
// [Group.SendTagged] and [Group.RecvTagged] transfer a message between two ranks. For each pair of
// ranks and each tag, the k-th Send matches the k-th Recv, on any streams. Messages are buffered,
// so Send does not block its stream until Recv is called. Unmatched messages make Group.Close and,
// unless Options.UnorderedMessages is set, the next collective return a MessageError.
//
// GPUs that exchange messages must belong to one machine. A message waits in the memory of the
// sender's GPU. While a peer has not received 1024 messages, the next Send to it waits. A Send in a
// graph reserves memory and one of these 1024 slots until the graph is closed, and a replay waits
// until the previous message has been received. Without a slot, Send returns ErrUnsupported.
//
// # Comparison and faults
//
// The history of a pool's requests determines where the pool places its buffers. Ranks compare
// these histories before they register memory. At level [CheckEvery], they also compare every
// collective before its result is used. If ranks differ, all of them return the same
// [DivergenceError].
//
// No wait for another rank lasts forever. If a rank does not make a call, the others log a warning
// and, after the timeout, return a [TimeoutError]. If a rank's process ends, they return a
// [RankLostError]. A fault is final: on every rank, all later calls of the group return it. To
// continue, create a new group. docs/reference/failures.md lists the guarantees.
//
// # Lock order
//
// Goroutines acquire the locks of this package in this order, and before those of a backend. Builds
// with the tag invariants panic otherwise.
//
//	AdoptedCommunicator.mu
//	Group.mu
//	Graph.mu
//	valueName.mu
//	segmentTable.ending
//	AdoptedCommunicator.windowsMu
//	Stream.pinning
//	Pool.mu
//	Stream.recording
//	sharedCapturesLock
//	Runtime.mu
//	Group.state
//	callSites.mu
//
// A goroutine may wait for other ranks while it holds one of the first six locks, but not while it
// holds another. There is one exception: to free a buffer that another stream has used, or to
// allocate its memory again, a call acquires the backend's lock of that stream with Pool.mu held. A
// goroutine that launches a collective may hold that lock until the other ranks launch it or the
// timeout expires.
package symmem

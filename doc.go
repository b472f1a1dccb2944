// Package symmem provides symmetric memory: every tensor has the same offset in the same segment on
// every rank. The ranks verify this. Collectives on such memory access the memory of peers
// directly.
//
// # Concepts
//
// A [Runtime] represents this process as a rank. The ranks of a [Group] communicate with each
// other. The first group is the world, and [Group.Split] creates more. A [Pool] allocates [Buffer]s
// in segments. The ranks of its domain, a group, must make the same allocations in the same order.
// Registering a segment with a group creates a window. A collective runs on one of several paths:
// the window path needs windows, the direct path needs GPUs, and the plain path accepts any memory.
// [Group.Explain] returns the path and the reason for it.
//
// Work is queued on a [Stream] and may be captured into a [Graph]. [Runtime.Interop] is for
// bindings, and for programs that share streams, communicators or memory with another library.
//
// # Collectives
//
// Every rank of a group must make the same collective calls in the same order. A nil stream selects
// the runtime's default stream. Counts are numbers of elements. If a buffer has a part for each
// rank, the parts are in group order. For an in-place call, pass this rank's part of that buffer as
// the other buffer.
//
// If a call needs to register memory first, it waits for the other ranks to do the same. The
// context of a collective limits only this wait; if it ends first, the call is not queued. Queued
// work runs until it completes or until [Options].Timeout expires. A nil context stands for
// context.Background.
//
// If a call returns [ErrOutOfRange], [ErrInvalid] or [ErrUnsupported], nothing is queued and the
// group remains usable. [ErrClosed] means that the group or its runtime is closed. Any other error
// is a fault of the group. The call, [Stream.Synchronize] or a wait for an [Event] returns the
// fault, and the output of the call must not be used.
//
// # Messages
//
// [Group.SendTagged] and [Group.RecvTagged] transfer a message between two ranks. For each pair of
// ranks and each tag, the k-th Send matches the k-th Recv, on any streams. Messages are buffered,
// so Send does not block its stream until Recv is called. Unmatched messages make Group.Close and,
// unless Options.UnorderedMessages is set, the next collective return a MessageError.
//
// GPUs that exchange messages must belong to one machine. A message waits in the memory of the
// sender's GPU; if there is not enough, Send returns ErrOutOfMemory. While a peer has not received
// 1024 messages, the next Send to it waits. A Send in a graph reserves memory and one of these 1024
// slots until the graph is closed, and a replay waits on its stream until the previous message has
// been received. If graphs have reserved all slots, Send returns ErrUnsupported.
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
// continue, create a new group.
//
// A [Stream] whose work has failed does not run later work until [Stream.Synchronize] has returned
// the error. If a collective is skipped for this reason, its group fails with a [PriorError].
// docs/reference/failures.md lists the guarantees.
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
//	Stream.pinning
//	Pool.mu
//	Stream.recording
//	AdoptedCommunicator.windowsMu
//	Runtime.mu
//	Group.state
//	callSites.mu
//
// A goroutine may wait for other ranks while it holds one of the first four locks, but not while it
// holds another. An allocation thus does not wait for a registration.
//
// There is one exception. To free a buffer that another stream has used, or to allocate its memory
// again, a call acquires the backend's lock of that stream with Pool.mu held. A goroutine that
// launches a collective may hold that lock until the other ranks launch it or the timeout expires.
package symmem

// Package symmem provides symmetric memory: every tensor has the same offset in the same segment on
// every rank, and the ranks verify this. Collectives on such memory access the memory of peers
// directly.
//
// # Concepts
//
// A [Runtime] represents this process as a rank. The ranks of a [Group] communicate with each
// other. The first group is the world, and [Group.Split] creates more. A [Pool] allocates [Buffer]s
// in segments. A pool may have a domain, a group whose ranks must make the same allocations in the
// same order. Allocations in a [Scope] come from a pool, and the end of the scope registers the
// pool's new segments with a group. The registration of a segment with a group creates a window.
// Collectives on buffers in windows can take the window path and, on GPUs, the direct path.
// Collectives on memory outside windows take the plain path or, for small messages, the direct
// path. A tuning table determines the path; [Group.Explain] returns the path and the reason for it.
//
// Work is queued on a [Stream] and may be captured into a [Graph].
//
// [Runtime.Interop] serves bindings for other languages, and programs that share streams,
// communicators or memory with another library. The methods of [Interop] use [AdoptedCommunicator],
// [Call] and [Observer].
//
// # Collectives
//
// Every rank of a group must make the same calls in the same order. A call is queued on a stream; a
// nil stream selects the runtime's default stream. On the host backend, a small call on an idle
// stream runs before the method returns. Counts are in elements, as in NCCL. send and recv may be
// the same memory if NCCL permits an in-place call.
//
// A call may first register memory of a pool that the group has not registered yet, and wait for
// the other ranks to do the same. The context of a collective limits that wait; if the context ends
// first, the call is not queued. The context does not cancel queued work, which runs until it
// completes or until [Options].Timeout expires. To limit the wait for queued work, pass a context
// to [Stream.Synchronize]. In every call, a nil context stands for context.Background.
//
// A call returns [ErrOutOfRange], [ErrInvalid] or [ErrUnsupported] before anything is queued, so
// the buffers are untouched and the group remains usable. [ErrClosed] means that the group or its
// runtime is closed. Any other error is a fault of the group. The call, [Stream.Synchronize] or a
// wait for an [Event] returns the fault, and the output of the call must not be used.
//
// # Messages
//
// [Group.SendTagged] and [Group.RecvTagged] transfer a message from one rank of a group to another.
// For each pair of ranks and each tag, the k-th Send matches the k-th Recv. Only the order of the
// calls on each rank counts, not the streams on which they are queued. Two ranks may send each
// other messages of any size at the same time: even if Recv has not been called yet, a Send does
// not block its stream, because the message is buffered. If messages are unmatched when the group
// closes, Close returns a MessageError. Unless Options.UnorderedMessages is set, an unmatched
// message is reported as early as the next collective.
//
// GPUs that exchange messages must belong to one machine. A message waits in the memory of the
// sender's GPU; if there is not enough memory, Send returns ErrOutOfMemory and sends nothing. Each
// pair of ranks may have 1024 messages in flight, and a further Send waits until one of them has
// been received. A Send in a graph reserves memory for the message, and one of these 1024 slots,
// for the lifetime of the graph. A replay therefore waits on its stream until the message of the
// previous replay has been received. If graphs have reserved all slots, Send returns
// ErrUnsupported.
//
// # Comparison
//
// The placement of buffers depends only on the history of requests, which every pool records in a
// ledger with a rolling digest. Ranks compare ledgers before they register anything and, at level
// [CheckEvery], compare every collective before its result is used. If ranks differ, all of them
// return the same [DivergenceError], which describes the first event that differs, and what each
// rank did instead.
//
// # Faults
//
// No wait for another rank lasts forever. If a rank does not arrive, the other ranks log a warning
// and, after the timeout, return a [TimeoutError] that describes what that rank was doing. If a
// rank's process ends, they return a [RankLostError]. A fault is final for its group: all later
// calls of the group return it, on every rank. To continue, create a new group.
//
// Work queued after a failure fails, too. A [Stream] whose work has failed does not run later work
// until [Stream.Synchronize] has returned the error. Waits for the stream's events also return the
// error. If a collective is skipped, its group fails with a [PriorError].
// docs/reference/failures.md lists the guarantees and their tests.
//
// # Caveats
//
// Collectives of a group, and all calls documented as collective, must be made in the same order on
// every rank of the group. Buffers are values and may be copied, but a copy that is used after Free
// may refer to another buffer's memory.
//
// # Lock order
//
// A goroutine acquires the locks of this package in the order below, and before those of a backend.
// Builds with the tag invariants panic if a goroutine violates this order.
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
// A goroutine may hold AdoptedCommunicator.mu, Group.mu, Graph.mu and valueName.mu while this rank
// waits for other ranks: during agreements and registrations, in operations on [Value], and while
// ranks determine the cause of a fault. With one exception, no goroutine waits for other ranks
// while it holds any of the other locks, so an allocation does not wait for a registration.
//
// The exception is a call that frees a buffer that another stream has used, or that allocates
// memory of such a buffer. It acquires that stream's lock in the backend while it holds Pool.mu. If
// another goroutine is launching a collective on the stream, it may hold the stream's lock until
// the peers of the collective have arrived or the timeout expires. Every user of the pool then
// waits, too.
package symmem

// Package symmem provides symmetric memory: every tensor lies at the same offset of the same
// segment on every rank, and the ranks verify that it does. Collectives on such memory access the
// memory of peers directly.
//
// # Concepts
//
// A [Runtime] represents this process as a rank. The ranks of a [Group] communicate with each
// other; the first group is the world, and [Group.Split] creates more. A [Pool] allocates [Buffer]s
// in segments; its domain is the group whose ranks promise to make the same allocations in the same
// order. A [Scope] is a section of code whose allocations come from a pool and whose end registers
// new segments with a group. A segment registered with a group is a window, and collectives on
// buffers in windows can take the window path and, on GPUs, the direct path. Memory outside windows
// can be used, too, on the plain path or, for small messages, on the direct path. A table
// determines the path, and [Group.Explain] returns the path and the reason.
//
// Work is queued on a [Stream] and may be captured into a [Graph].
//
// [Runtime.Interop] serves bindings for other languages, and programs that share streams,
// communicators or memory with another library. [AdoptedCommunicator], [Call] and [Observer] belong
// to it.
//
// # Collectives
//
// Every rank of a group must make the same calls in the same order. A call is queued on a stream; a
// nil stream selects the runtime's default stream. On the host backend, a small call on an idle
// stream runs before it returns. Counts are in elements, as in NCCL, and send may be recv where
// NCCL permits work in place.
//
// A call may first register memory of a pool that the group has not registered yet, and wait for
// the other ranks to do the same. The context of a collective bounds that wait; if the context ends
// first, the call is not queued. The context does not cancel queued work, which ends when it is
// complete or after [Options].Timeout. [Stream.Synchronize] has a context to bound the wait for it.
// A nil context stands for context.Background in every call.
//
// A call returns [ErrOutOfRange], [ErrInvalid] or [ErrUnsupported] before anything is queued, so
// the buffers are untouched and the group remains usable. [ErrClosed] means that the group or its
// runtime is closed. Any other error is a fault of the group. It is returned by the call, by
// [Stream.Synchronize] or by a wait for an [Event], and the output of the call must not be used.
//
// # Messages
//
// [Group.SendTagged] and [Group.RecvTagged] transfer a message from one rank of a group to another.
// For each pair of ranks and each tag, the k-th Send matches the k-th Recv, in the order of calls
// on each rank, whatever the streams. Two ranks may send to each other at the same time, at any
// size: a Send whose Recv has not been called yet buffers the rest of the message and lets the
// stream continue. If messages are unmatched when the group closes, Close returns a MessageError.
// Unless Options.UnorderedMessages is set, the next collective already reports an unmatched
// message.
//
// GPUs that exchange messages must belong to one machine. A message waits in memory of the sender's
// GPU; if there is not enough, Send returns ErrOutOfMemory and sends nothing. Each pair of ranks
// may have 1024 messages in flight; the next Send waits until one has been received. A Send in a
// graph reserves one of these places and its memory for the lifetime of the graph, so a replay
// waits on its stream until the message of the previous replay has been received. If graphs have
// reserved all places, Send returns ErrUnsupported.
//
// # Comparison
//
// Placement is a pure function of the history of requests, which every pool records in a ledger
// with a rolling digest. Ranks compare ledgers before they register anything and, at level
// [CheckEvery], compare every collective before its result is used. If ranks differ, all of them
// return the same [DivergenceError], which describes the first event that differs and what each
// rank did there.
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
// error, and a collective that is skipped fails its group with a [PriorError].
// docs/reference/failures.md lists the guarantees and their tests.
//
// # Caveats
//
// Collectives of a group, and all calls documented as collective, must be made in the same order on
// every rank of the group. Buffers are values and may be copied; a copy that is used after Free may
// refer to memory of another buffer.
//
// # Lock order
//
// A goroutine acquires the locks of this package in this order, before those of a backend. Builds
// with the tag invariants panic if a goroutine violates the order.
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
// AdoptedCommunicator.mu, Group.mu, Graph.mu and valueName.mu may be held while this rank waits for
// others: during agreements and registrations, in calls on values, and while ranks determine the
// cause of a fault. The other locks are not, so an allocation does not wait for a registration.
// There is one exception. A Free of a buffer that another stream used, and an allocation that
// reuses such memory, hold Pool.mu while they acquire that stream's lock in the backend. A call
// that launches a collective on the stream holds that lock until its peers have arrived, at most
// for the timeout.
package symmem

// Package symmem gives programs symmetric memory: every tensor lies at the same offset of the same
// segment on every rank, and the ranks compare that it does. Collectives over such memory read and
// write peers directly.
//
// # Concepts
//
// A [Runtime] is one rank. A [Group] is a set of ranks that communicate; the world is the first
// one, and [Group.Split] makes more. A [Pool] hands out [Buffer]s from segments; its domain is the
// group whose ranks promise to make the same allocations in the same order. A [Scope] is a section
// of code whose allocations come from a pool and whose end registers new segments with a group: a
// segment registered with a group is a window, and collectives on buffers in windows can take the
// window path, and on GPUs the direct one. Memory outside windows works too, on the plain path or,
// if messages are small, on the direct one. A table chooses the path, and [Group.Explain] returns
// the reason.
//
// Work is queued on a [Stream] and may be captured into a [Graph].
//
// Bindings for other languages, and programs that share streams, communicators or memory with
// another library, find what they need behind [Runtime.Interop]: [AdoptedCommunicator], [Call] and
// [Observer] belong to it.
//
// # Collectives
//
// Every rank of a group makes the same calls in the same order. A call is queued on a stream; a nil
// stream is the default one of the runtime. On the host, an idle stream runs a small call before it
// returns. Counts are in elements, as in NCCL, and send may be recv where NCCL allows work in
// place.
//
// A call may first register memory of a pool that the group has not registered yet, which waits for
// the other ranks. The context of a collective bounds that wait; if it ends there, the call is not
// queued. It does not end work that is queued: that ends when it is done or after
// [Options].Timeout, and [Stream.Synchronize] takes a context to wait for it. A nil context is
// context.Background, here and in every call that takes one.
//
// A call returns [ErrOutOfRange], [ErrInvalid] or [ErrUnsupported] before anything is queued: the
// buffers are untouched, and the group stays usable. [ErrClosed] means that the group or its
// runtime is closed. Any other error is a fault of the group. The call returns it, or
// [Stream.Synchronize], or a wait for an [Event]; the output of the call must not be used then.
//
// # Messages
//
// Messages ([Group.SendTagged], [Group.RecvTagged]) go from one rank of a group to another. The
// k-th Send of a pair of ranks with a tag belongs to the k-th Recv with it, in the order of calls
// of each rank, whatever the streams. Both directions go at once, at any size: a Send whose Recv is
// not there yet copies the rest of the message and lets the stream continue. Messages unmatched
// when the group closes are a MessageError, and where messages are ordered with collectives
// (Options.UnorderedMessages) a forgotten one is found at the next collective.
//
// On GPUs, which need to be of one machine for that, each message waits in memory of the sender's
// GPU: a Send that finds none is ErrOutOfMemory, and sends nothing. Of a pair 1024 messages may be
// under way; the next Send waits until one is received. A Send in a graph has its place and memory
// for as long as the graph, so in a replay its stream waits until the message of the replay before
// was received, and a Send that finds all places held by graphs is ErrUnsupported.
//
// # Comparison
//
// Placement is a pure function of the history of requests, which every pool keeps in a ledger with
// a rolling digest. Ranks compare ledgers before they register anything, and, at level
// [CheckEvery], compare every collective before its result is used. Ranks that differ all get the
// same [DivergenceError], which names the first differing event of each side.
//
// # Faults
//
// No wait for another rank lasts forever. The other ranks log a warning about a rank that does not
// arrive, and return a [TimeoutError] after the timeout, which describes what the rank was doing.
// If the process of a rank ends, they return a [RankLostError]. A fault is final for its group:
// from then on all calls of the group return it, on every rank. To continue, make a new group.
//
// Work queued behind a failure fails, too. A [Stream] whose work has failed does not run what is
// queued behind, until [Stream.Synchronize] has returned the error. Waits for its events return the
// error, too, and a collective that is not run fails its group with a [PriorError].
// docs/reference/failures.md lists the guarantees, with their tests.
//
// # Caveats
//
// Collectives of one group, and everything that is called collective here, must be called in the
// same order on every rank of the group. Buffers are values and may be copied; a copy that is used
// after Free may refer to memory of another buffer.
//
// # Lock order
//
// A goroutine takes the locks of this package in this order, and those of a backend after them.
// Builds with the tag invariants panic where one does not.
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
// AdoptedCommunicator.mu, Group.mu, Graph.mu and valueName.mu are held while this rank waits for
// others: during agreements and registrations, in values, and while ranks find out about a fault
// together. The others are not, so an allocation never waits for a registration. With one
// exception: a Free of a buffer that another stream used, and an allocation that takes one back,
// hold Pool.mu and take the lock of that stream in the backend. A call that launches a collective
// there holds that until its peers have come, at most for the timeout.
package symmem

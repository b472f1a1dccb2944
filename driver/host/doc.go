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
// # How ranks signal one another
//
// A group shares one control region, in which every rank owns a few cache lines. Collectives move
// in steps. In step n every rank posts a line (step number, digest of its call, up to 48 bytes of
// payload) and waits for the lines of step n of all others. There are two lines, used in turn: a
// rank that has seen all lines of step n-1 knows that nobody still reads its line, or its
// staging, of step n-2. So one step is a barrier, a comparison of calls and, for small messages,
// the message itself; comparing calls therefore costs one compare of a word that is in a
// register anyway.
//
// Waits spin briefly, then yield, then sleep on a futex. The sleeper raises a flag that posters
// read; a wake-up lost in the race between the two costs one bounded slice of sleep, which is
// what spares posters a full memory fence on every post. Every slow wait also looks for lost
// processes (their pidfds), for peers that have failed, and at the clock.
//
// # Planes
//
// A backend whose data moves elsewhere joins groups of one machine by Device.Join: the same
// region, in which steps compare calls and nothing else. The board says what has been submitted
// elsewhere, so a slow wait there finds lost and missing ranks as one here does.
//
// # Lock order
//
// A goroutine takes locks in this order. Builds with the tag invariants panic where one does not.
//
//	graph.mu
//	stream.mu
//	lane.mu
//	inlet.mu
//	outlet.mu
//	mail.mu
//	communicator.mu
//	segment.mu
//	Device.mu
//	event.mu
//
// The first three are held while this rank waits for others: an exchange holds its lane.mu, and a
// launch its stream.mu (and the graph.mu of a graph) as long as the collective runs on the caller's
// thread. The others are not.
package host

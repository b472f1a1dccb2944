// Package shm implements control.Plane over shared memory, for ranks on one machine. Backends that
// transfer data through shared memory can also use its groups directly.
//
// A Machine finds the other ranks on the machine, and a Group connects the ranks of a group.
// Machine.Join returns a plane, which is a Group that transfers no data. driver/host instead
// embeds a Group in its communicators and transfers data through the group's region.
//
// # How ranks signal each other
//
// A group shares one control region, in which every rank owns a few cache lines. Collectives
// advance in steps. In step n, every rank posts a line (step number, digest of its call, up to
// 48 bytes of payload) and waits for the lines that all other ranks post in step n. Each rank
// alternates between two lines. This is safe because no rank still reads another's line of step
// n-2 when all ranks have posted their lines of step n-1. One step acts as a barrier, compares
// calls and, for small messages, transfers the data. The comparison is almost free, because the
// waiting rank has already loaded the digest. On a plane, a step only compares calls.
//
// Waits first spin briefly, then yield, and then sleep on a futex. Before it sleeps, a thread
// sets a flag (wakeup.sleeping), which the other ranks read after each post. If a rank posts
// while the flag is being set, the wake-up may be lost. The thread then sleeps until its sleep
// times out, which is the price for not needing a full memory fence on every post. Every slow
// wait also checks for processes that have exited (through pidfds), for peers that have failed,
// and for its timeout. Each rank publishes in its status what it is waiting for and how many
// collectives it has submitted. From the statuses, control.Judge decides whether a rank is
// lost, is late, or waits for this rank in another call.
//
// # Trust
//
// Descriptors are sent over a private Unix socket (package handoff) to ranks that have the
// world's token, which rank 0 puts into the store. A process with the token can map the region
// of each of its groups and write to all of it, so ranks trust each other with their memory.
// This package checks only values that could make this process access invalid memory: the sizes
// of mapped files, and the sizes that ranks announce on lanes. It returns an error if a rank is
// on another machine, is in another container or has another version of symmem.
//
// # Lock order
//
// A goroutine acquires these locks in the following order, after any locks that its caller holds.
// Builds with the tag invariants panic on any other order.
//
//	lane.mu
//	Counts.Mu
//	Group.Mu
//	Machine.mu
//
// While this rank waits for other ranks, it holds no lock except lane.mu during an exchange.
// Counts.Mu and Group.Mu also guard the fields of a communicator that change together with
// message numbers and tickets, so that a call needs no additional lock.
package shm

// Package shm implements control.Plane over shared memory, for ranks of one machine. It also
// provides what a backend needs that transfers data through shared memory, too.
//
// A Machine finds the other ranks of the machine. A Group joins the ranks of a group. Machine.Join
// returns it as a plane, whose collectives run elsewhere; driver/host puts a Group into its
// communicators, and transfers data through the same region. The states are documented with the two
// types.
//
// # How ranks signal each other
//
// A group shares one control region, in which every rank owns a few cache lines. Collectives
// advance in steps. In step n every rank posts a line (step number, digest of its call, up to 48
// bytes of payload) and waits for the lines of step n of all others. Two lines are used in turn: a
// rank that has seen all lines of step n-1 knows that no rank still reads its line of step n-2. So
// one step is a barrier, a comparison of calls and, for small messages, the transfer of data;
// comparing calls costs only the comparison of a word that is in a register anyway. On a plane a
// step only compares calls.
//
// Waits spin briefly, then yield, then sleep on a futex. The sleeper sets a flag (wakeup.sleeping)
// that ranks read after a post. If the two race, a wake-up may be lost; that costs one bounded
// sleep, and saves a full memory fence on every post. Every slow wait also checks for lost
// processes (their pidfds), for peers that have failed, and for its timeout. The status of a rank
// contains what it waits for and what it has submitted. From that control.Judge decides whether a
// rank is lost, late, or in a call in which this rank can never meet it.
//
// # What is trusted
//
// Descriptors are passed over a private Unix socket (package handoff), to ranks that know the token
// of the world, which rank 0 puts into the store. A process with the token can map and write the
// whole region of its groups: ranks trust each other with their memory. Only values that could make
// this process access invalid memory are checked: the sizes of files that are mapped, and the sizes
// that a lane announces. Ranks of another machine or container, and of another version of symmem,
// cause errors.
//
// # Lock order
//
// A goroutine takes locks in this order, after those of its caller. Builds with the tag invariants
// panic if one does not.
//
//	lane.mu
//	Counts.Mu
//	Group.Mu
//	Machine.mu
//
// Only the first is held while this rank waits for others: an exchange holds its lane.mu. Counts.Mu
// and Group.Mu also guard what a communicator updates together with numbers and tickets, so that a
// call needs no additional lock.
package shm

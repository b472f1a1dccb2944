// Package shm implements control.Plane over shared memory, for ranks of one machine. Backends that
// transfer data through shared memory can also use its groups directly.
//
// A Machine finds the other ranks of the machine. A Group connects the ranks of a group.
// Machine.Join returns a plane, which is a Group whose data is transferred elsewhere. driver/host
// embeds a Group in its communicators and transfers data through the group's region. Machine and
// Group document their states.
//
// # How ranks signal each other
//
// A group shares one control region, in which every rank owns a few cache lines. Collectives
// advance in steps. In step n every rank posts a line (step number, digest of its call, up to 48
// bytes of payload) and waits for the lines of step n of all other ranks. Each rank alternates
// between two lines. That is safe: once a rank has seen all lines of step n-1, no rank still reads
// its line of step n-2. One step is a barrier, compares calls and, for small messages, transfers
// the data. Comparing calls costs only the comparison of a word that is in a register anyway. On a
// plane a step only compares calls.
//
// Waits spin briefly, then yield, then sleep on a futex. The sleeper sets a flag (wakeup.sleeping)
// that ranks read after a post. If the store of the flag races with a post, the wake-up may be
// lost. That costs one bounded sleep, but saves a full memory fence on every post. Every slow wait
// also checks for processes that have ended (through pidfds), for peers that have failed, and for
// its timeout. Each rank's status contains what the rank waits for and the number of collectives
// that it has submitted. From the status, control.Judge decides whether a rank is lost, late, or
// waits for this rank in another call.
//
// # Trust
//
// Descriptors are sent over a private Unix socket (package handoff) to ranks that have the world's
// token, which rank 0 puts into the store. A process with the token can map and write the whole
// region of its groups, so ranks trust each other with their memory. Only values that could make
// this process access invalid memory are checked: the sizes of mapped files, and the sizes that a
// lane announces. A rank that is on another machine, is in another container, or has another
// version of symmem causes an error.
//
// # Lock order
//
// A goroutine acquires locks in this order, after those of its caller. Builds with the tag
// invariants panic on any other order.
//
//	lane.mu
//	Counts.Mu
//	Group.Mu
//	Machine.mu
//
// This rank waits for other ranks only during an exchange, with lane.mu held and no other lock.
// Counts.Mu and Group.Mu also guard the fields of a communicator that change together with message
// numbers and tickets, so that a call needs no additional lock.
package shm

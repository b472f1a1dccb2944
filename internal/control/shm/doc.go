// Package shm is a control.Plane for ranks of one machine, over shared memory, and what a backend
// whose data moves through shared memory, too, is built on.
//
// A Machine finds the other ranks of the machine. A Group joins those of a group: with
// Machine.Join it is a plane, whose collectives run elsewhere; driver/host puts one into its
// communicators, and moves its data next to the same lines and words. Their states are documented
// with the two types.
//
// # How ranks signal one another
//
// A group shares one control region, in which every rank owns a few cache lines. Collectives move
// in steps. In step n every rank posts a line (step number, digest of its call, up to 48 bytes of
// payload) and waits for the lines of step n of all others. There are two lines, used in turn: a
// rank that has seen all lines of step n-1 knows that nobody still reads its line of step n-2. So
// one step is a barrier, a comparison of calls and, for small messages, the message itself;
// comparing calls therefore costs one compare of a word that is in a register anyway. On a plane a
// step compares calls and does nothing else.
//
// Waits spin briefly, then yield, then sleep on a futex. The sleeper sets a flag (wakeup.sleeping)
// that ranks read after a post. If the two race, a wake-up may be lost; that costs one bounded
// sleep, and saves a full memory fence on every post. Every slow wait also checks for lost
// processes (their pidfds), for peers that have failed, and whether its time is up. The status of a
// rank says what it waits for and what it has submitted. From that control.Judge decides whether a
// rank is lost, late, or in a call in which this rank can never meet it.
//
// # What is trusted
//
// Descriptors travel over a private Unix socket (package handoff), to ranks that know the token of
// the world, which rank 0 leaves in the store. Who has that maps the region of its groups, and can
// write all of it: ranks trust each other with their memory. What they write is checked where a
// mistake would be memory of this process: the sizes of files that are mapped, and the sizes that a
// lane announces. Ranks of another machine or container, and of another version of symmem, are
// errors.
//
// # Lock order
//
// A goroutine takes locks in this order, behind those of its caller. Builds with the tag invariants
// panic where one does not.
//
//	lane.mu
//	Counts.Mu
//	Group.Mu
//	Machine.mu
//
// The first is held while this rank waits for others: an exchange holds its lane.mu. The others are
// not. Counts.Mu and Group.Mu also guard what a communicator keeps together with numbers and
// tickets, so that a call takes no lock more.
package shm

// Package shm implements control.Plane over shared memory, for ranks on one machine.
//
// A Machine finds the other ranks on the machine, and a Group connects the ranks of a group.
// Machine.Join returns a plane, which is a Group that transfers no data.
//
// # How ranks signal each other
//
// A group shares one control region, in which every rank owns a few cache lines. Collectives
// advance in steps. In step n, every rank posts a line (step number, digest of its call, up to 48
// bytes of payload) and waits for the other ranks' lines of step n. Each rank alternates between
// two lines: when all ranks have posted step n-1, no rank still reads a line of step n-2.
//
// Waits first spin briefly, then yield, and then sleep on a futex. Before it sleeps, a thread sets
// a flag (wakeup.sleeping), which the other ranks read after each post. If a rank posts while the
// flag is being set, the wake-up may be lost, and the thread sleeps until its sleep times out. In
// return, a post needs no full memory fence. Every slow wait also checks for processes that have
// exited (through pidfds), for peers that have failed, and for its timeout.
//
// # Trust
//
// Ranks that have the world's token, which rank 0 puts into the store, get descriptors over a
// private Unix socket (package handoff). They can write to all of a group's region, so ranks trust
// each other with their memory. This package checks only values that could make this process access
// invalid memory: the sizes of mapped files, and the sizes that ranks announce on lanes.
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
// Counts.Mu and Group.Mu also guard the fields of a communicator that change together with message
// numbers and tickets.
package shm

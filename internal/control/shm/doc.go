// Package shm implements control.Plane over shared memory, for ranks on one machine.
//
// A Machine finds the other ranks on the machine. Machine.Join returns a plane, which is a Group
// that transfers no data.
//
// # How ranks signal each other
//
// A group shares one control region, with a few cache lines per rank. In step n of the collectives,
// every rank posts a line (step number, digest of its call, up to 48 bytes of payload) and waits
// for the other ranks' lines. It alternates between two lines: when all ranks have posted step n-1,
// no rank reads step n-2 any more.
//
// Waits spin, then yield, and then sleep on a futex. Before it sleeps, a thread sets
// wakeup.sleeping, which other ranks read after each post. A wake-up is lost if it comes too early,
// and the thread sleeps until its sleep times out. In return, a post needs no full memory fence.
//
// # Trust
//
// Ranks with a token, which rank 0 puts into the store, get descriptors over a private Unix socket
// (package handoff). They can write to all of a group's region, so this package checks only values
// with which this process could access invalid memory.
//
// # Lock order
//
// Goroutines acquire locks in this order, after any locks of their callers. Builds with the tag
// invariants panic on any other order.
//
//	lane.mu
//	Counts.Mu
//	Group.Mu
//	Machine.mu
//
// faultLogs.mu is the lane.mu of driver.LaneFault. While this rank waits for others, it holds no
// lock except lane.mu during an exchange. Counts.Mu and Group.Mu also guard the fields of a
// communicator that change together with message numbers and tickets.
package shm

// Package tcp is a control.Plane for ranks of several machines, over TCP.
//
// # Who talks to whom
//
// Every rank tells every other rank what it does, over one connection for each pair. So each
// rank has a table of all of them, the same questions are answered from it as from the shared
// memory of package shm, and no rank is special: when one is lost, whichever it is, the others
// still meet. A rank in the middle would save connections, but would be what every message waits
// for, and its loss would cut off all the others.
//
// Group rank 0 makes a token and leaves it in the store under the group's id; everybody listens
// on a port and leaves its address there; each rank connects to those before it. Both ends of a
// connection show one half of the token, and say nothing else to a stranger.
//
// # What is said
//
// Payloads of exchanges and digests of calls are sent at once. What a rank is doing, and how many
// collectives it has submitted, is told at intervals, when it has changed: a submission is a
// store, and a message only if nothing else happens for a tenth of a second. A rank that fails
// says which exchanges and comparisons it had seen complete, so that those who wait in one of them
// wait on for what is on its way to them: an exchange that has succeeded for one rank succeeds for
// all, and a difference between calls is known to every rank.
//
// A connection that ends without a goodbye is a lost rank. The kernel ends it when the process
// has ended, and within seconds when the other machine no longer answers. A rank whose own process
// was stopped reads what has come meanwhile before it finds others late.
//
// # Lock order
//
//	Plane.mu
//	  link.mu
package tcp

// Package tcp is a control.Plane for ranks of several machines, over TCP.
//
// # Connections
//
// Every rank sends its status to every other rank, over one connection for each pair. So each rank
// has a record of every other, and control.Judge decides from the records as it does from the
// shared memory of package shm. No rank is special: when one is lost, whichever it is, the others
// can still exchange reports. A server between the ranks would save connections, but every message
// would wait for it, and its loss would disconnect all ranks.
//
// Group rank 0 makes a token and leaves it in the store under the group's id; everybody listens
// on a port and leaves its address there; each rank connects to those before it. Both ends of a
// connection send one half of the token, and nothing else before they have checked the other half.
//
// # What is sent
//
// Payloads of exchanges and digests of calls are sent at once. What a rank is doing, and how many
// collectives it has submitted, is sent at intervals, when it has changed: a submission is a store,
// and a message only if nothing else happens for a tenth of a second. A rank that fails sends which
// exchanges and comparisons it had seen complete. Ranks that still wait in one of them wait on for
// the messages that are on their way: an exchange that has succeeded for one rank succeeds for all,
// and a difference between calls is known to every rank.
//
// A connection that ends without kindLeave is that of a lost rank. The kernel ends it when the
// process has ended, and within seconds when the other machine no longer answers. A rank whose own
// process was stopped reads the messages that have come meanwhile before it finds others late.
//
// # Lock order
//
//	Plane.mu
//	  link.mu
package tcp

// Package tcp implements control.Plane over TCP, for ranks on several machines.
//
// # Connections
//
// Every rank sends its status to every other rank, over one connection for each pair. So each rank
// has a record of every other, and control.Judge works on the records as it does on the shared
// memory of package shm. No rank is special: whichever rank is lost, the others can still exchange
// reports. A central server would save connections, but every message would have to pass through
// it, and its loss would disconnect all ranks.
//
// Group rank 0 generates a token and puts it into the store under the group's id. Every rank
// listens on a port and puts its address into the store; each rank connects to the ranks before it.
// Both ends of a connection send one half of the token, and nothing else until they have verified
// the other half.
//
// # Messages
//
// Payloads of exchanges and digests of calls are sent at once. The activity of a rank and the
// number of collectives it has submitted are sent at intervals, if they have changed: a submission
// writes to memory, and causes a message only if nothing else is sent for a tenth of a second. A
// rank that fails sends which exchanges and comparisons it had seen complete. Ranks that still wait
// in one of those keep waiting for the messages in transit: an exchange that has succeeded for one
// rank succeeds for all, and a mismatch between calls is known to every rank.
//
// If a connection ends without kindLeave, its rank is lost. The kernel closes the connection when
// the process has ended, and within seconds when the other machine no longer answers. After a
// rank's own process was stopped, it reads the messages that arrived meanwhile before it considers
// others late.
//
// # Lock order
//
//	groupState.mu
//	  link.mu
package tcp

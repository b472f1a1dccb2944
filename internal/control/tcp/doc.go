// Package tcp implements control.Plane over TCP, for ranks on several machines.
//
// # Connections
//
// Each pair of ranks has one connection, and every rank sends its status to every other rank. Each
// rank therefore keeps a record of every other rank, and control.Judge works on these records as it
// does on the shared memory of package shm. No rank is special: if any rank is lost, the other
// ranks can still exchange reports. A central server would need fewer connections, but every
// message would pass through it, and its loss would disconnect all ranks.
//
// Group rank 0 generates a token and stores it under the group's id. Every rank listens on a port,
// stores its addresses, and connects to the ranks before it. Each end of a connection sends one
// half of the token, and nothing else until it has verified the other end's half.
//
// # Messages
//
// Payloads of exchanges and digests of calls are sent at once. A rank's activity and the number of
// collectives that it has submitted are sent every statusInterval if they have changed, so a
// submission only writes to memory. A rank that fails also sends which exchanges and comparisons it
// had seen complete. Ranks that still wait in one of these keep waiting for the messages in
// transit. An exchange that has succeeded on one rank therefore succeeds on all, and every rank
// detects a mismatch between calls.
//
// If a connection ends without kindLeave, the rank at its other end is lost. The kernel closes the
// connection when the process ends or, within seconds, when the other machine no longer answers. A
// process that resumes after being stopped first reads the messages that arrived in the meantime,
// and only then considers other ranks late.
//
// # Lock order
//
//	groupState.mu
//	  link.mu
package tcp

// Package tcp implements control.Plane over TCP, for ranks on several machines.
//
// # Connections
//
// Every rank sends its status to every other rank. Each pair of ranks has one connection. So each
// rank keeps a record of every other rank. control.Judge works on these records as it does on the
// shared memory of package shm. No rank is special: if any rank is lost, the other ranks can still
// exchange reports. A central server would save connections. But every message would have to pass
// through it, and its loss would disconnect all ranks.
//
// Group rank 0 generates a token and puts it into the store under the group's id. Every rank
// listens on a port and puts its addresses into the store. Each rank connects to the ranks before
// it. Each end of a connection sends one half of the token, and nothing else until it has verified
// the half of the other end.
//
// # Messages
//
// Payloads of exchanges and digests of calls are sent at once. A rank's activity and the number of
// collectives that it has submitted are sent every statusInterval, if they have changed. So a
// submission only writes to memory. A rank that fails sends which exchanges and comparisons it had
// seen complete. Other ranks may still wait in one of these. They keep waiting for the messages in
// transit. So an exchange that has succeeded on one rank succeeds on all, and every rank detects a
// mismatch between calls.
//
// If a connection ends without kindLeave, the rank at its other end is lost. The kernel closes the
// connection when the process has ended. If the other machine no longer answers, the kernel closes
// the connection within seconds. A process that was stopped first reads the messages that arrived
// meanwhile. Only then does it consider other ranks late.
//
// # Lock order
//
//	groupState.mu
//	  link.mu
package tcp

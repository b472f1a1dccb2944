// Package tcp implements control.Plane over TCP, for ranks on several machines.
//
// # Connections
//
// Each pair of ranks has one connection, over which they send each other their status. From it,
// each rank keeps a record of every other rank for control.Judge. There is no central server, whose
// loss would disconnect all ranks.
//
// Group rank 0 stores a token under the group's ID. Every rank listens on a port, stores its
// addresses, and connects to all lower-numbered ranks. Each end of a connection sends one half of
// the token, and nothing more until it has verified the other half.
//
// # Messages
//
// Payloads and digests (hashes) of calls are sent immediately. A changed status (what the rank is
// doing, and how many collectives it has submitted) is sent every statusInterval. A rank that fails
// also sends which exchanges and comparisons it has seen complete. Other ranks still wait for their
// messages. An exchange that succeeds on one rank therefore succeeds on all, and every rank detects
// a mismatch between calls.
//
// A rank is lost if its connection closes before it has sent kindLeave. The kernel closes the
// connection when the process exits or, within seconds, when the machine no longer answers. A
// process that resumes after being stopped first reads the messages that have arrived, and only
// then considers other ranks late.
//
// # Lock order
//
//	groupState.mu
//	  link.mu
package tcp

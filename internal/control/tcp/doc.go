// Package tcp implements control.Plane over TCP, for ranks on several machines.
//
// # Connections
//
// Each pair of ranks has one connection, over which they send each other their status. From these
// messages, each rank keeps a record of every other rank for control.Judge. There is no central
// server, whose loss would disconnect all ranks.
//
// Group rank 0 generates a token and stores it under the group's id. Every rank listens on a port,
// stores its addresses, and connects to all lower-numbered ranks. Each end of a connection sends
// one half of the token, and nothing more until it has verified the other half.
//
// # Messages
//
// Payloads of exchanges and digests of calls are sent immediately. A rank's status is sent every
// statusInterval if it has changed. The status contains what the rank is doing and how many
// collectives it has submitted. A rank that fails also sends which exchanges and comparisons it has
// seen complete. Other ranks still wait for the messages of these. An exchange that succeeds on one
// rank therefore succeeds on all, and every rank detects a mismatch between calls.
//
// If a connection closes before the other rank has sent kindLeave, that rank is lost. The kernel
// closes the connection when the process exits or, within seconds, when the other machine no longer
// answers. A process that resumes after being stopped first reads the messages that arrived in the
// meantime, and only then considers other ranks late.
//
// # Lock order
//
//	groupState.mu
//	  link.mu
package tcp

// Package tcp implements control.Plane over TCP, for ranks on several machines.
//
// # Connections
//
// Each pair of ranks exchanges messages over one connection. From them, each rank keeps a record of
// every other rank for control.Judge. There is no central server, whose loss would disconnect all
// ranks.
//
// Every rank listens on a port, stores its addresses, and connects to all lower-numbered ranks.
// Each end of a connection sends one half of a token, which group rank 0 stores, and nothing more
// until it has verified the other half.
//
// # Messages
//
// Payloads and digests (hashes) of calls are sent immediately. A changed status is sent every
// statusInterval. A rank that fails also sends which exchanges and comparisons it has seen
// complete. Other ranks still wait for their messages. An exchange that succeeds on one rank thus
// succeeds on all, and every rank detects a mismatch between calls.
//
// A rank is lost if its connection closes before it has sent kindLeave. The kernel closes the
// connection when the process exits or, within seconds, when the machine no longer answers. A
// process that was stopped first reads the messages that have arrived, and only then considers
// other ranks late.
//
// # Lock order
//
//	groupState.mu
//	  link.mu
package tcp

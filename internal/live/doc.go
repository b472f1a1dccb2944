// Package live serves the current state of ranks over HTTP: a page, metrics for Prometheus, and
// JSON. A [Snapshot] holds the state of one rank.
//
// Each rank has a [Server] that listens on a Unix socket in the folder of the rank's job:
// <temporary folder>/symmem-<user id>/<job>/rank<N>.sock. Only the user can enter the folder. The
// socket gets its final name once it accepts connections, so if it refuses them later, the rank's
// process has exited.
//
// If an address is configured, the lowest running rank on a machine also serves the states of the
// machine's ranks over TCP. All other ranks keep a connection to it. When the connection closes,
// they look for the lowest rank again.
//
// No request changes anything. Over TCP, /metrics is public, and other paths are served only at a
// loopback address, with the token of the job.
package live

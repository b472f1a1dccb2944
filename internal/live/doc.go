// Package live serves the current state of ranks over HTTP: a page, metrics for Prometheus, and
// JSON. A [Snapshot] holds the state of one rank.
//
// # Sockets
//
// Each rank has a [Server] that listens on a Unix socket in the folder of the rank's job:
// <temporary folder>/symmem-<user id>/<job>/rank<N>.sock. Only the user can enter the folder. A
// server creates the socket under another name and renames it once the socket accepts connections.
// Therefore, if a socket with its final name refuses connections, the rank's process has exited.
// [Sweep] removes the sockets of jobs in which all ranks have exited.
//
// # Page
//
// The page is made by package page and fetches its data every second. The data contain the latest
// events of each pool. The server compares those events that are available from all ranks.
//
// # Address
//
// If an address is configured, the lowest running rank on a machine also serves the states of all
// ranks on the machine over TCP. That rank reads the Snapshots of the other ranks from their
// sockets. Each other rank keeps a connection to the lowest rank. When the connection closes, the
// rank looks for the lowest rank again, and serves the address if there is no lower rank.
//
// Start must be called after all ranks have opened their Servers, so that no lower rank appears
// later.
//
// # What a client may do
//
// Only GET and HEAD are allowed, and no request changes anything. Over TCP, /metrics is public. All
// other paths are served only at a loopback address and only with the token of the job. The Host of
// a request must be an IP address, localhost, the name of this machine or the host of the
// configured address. The number of connections and the size and duration of requests are limited.
package live

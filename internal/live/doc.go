// Package live serves the current state of ranks over HTTP: a page, metrics for Prometheus, and
// JSON. A [Snapshot] holds the state of one rank.
//
// Each rank has a [Server] that listens on a Unix socket in the folder of the rank's job:
// <temporary folder>/symmem-<user id>/<job>/rank<N>.sock. Only the user can enter the folder. The
// socket gets its final name once it accepts connections, so if it refuses them later, the rank's
// process has exited.
//
// If an address is configured, the lowest running rank on a machine also serves the states of the
// machine's ranks over TCP. Each other rank keeps a connection to the lowest rank. When it closes,
// the rank looks for the lowest rank again, and serves the address if there is no lower rank.
//
// Only GET and HEAD are allowed, and no request changes anything. Over TCP, /metrics is public.
// Other paths are served only at a loopback address, with the token of the job. The Host of a
// request must be an IP address, localhost, or the name of this machine or of the configured
// address. The number of connections and the size and duration of requests are limited.
package live

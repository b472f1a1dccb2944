// Package live serves the current state of ranks over HTTP: a page, metrics for Prometheus, and
// JSON. It reads a rank's state as a [Snapshot].
//
// # Sockets
//
// Each rank has a [Server] with a Unix socket in the folder of its job, which only the user can
// enter: <temporary folder>/symmem-<user id>/<job>/rank<N>.sock. A server creates its socket under
// another name and renames it once it accepts connections. A socket under its final name that
// refuses connections therefore belongs to a rank whose process has exited. [Sweep] removes such
// sockets. It runs whenever a rank of the same user opens a Server, and when symmem launch exits.
//
// # Page
//
// The page is built with package page and fetches its data every second. The data contain the
// latest events of each pool, which a rank copies from the history of the pool while it holds the
// pool's lock. The server compares those events that all ranks of the pool still have.
//
// # Address
//
// If an address is configured, the lowest living rank of a machine also serves all ranks of the
// machine over TCP. For each request, it reads the Snapshots of the other ranks from their sockets.
// Each of the other ranks keeps a connection to the lowest one. When that connection closes, the
// rank looks for the lowest rank again, and serves the address itself if there is no lower rank. If
// the process of the lowest rank is killed, a successor therefore takes over as soon as the kernel
// has closed the connections of that process.
//
// Start must be called after all ranks have opened their Servers, so that no lower rank appears
// later.
//
// # What a client may do
//
// Only GET and HEAD are allowed, and no request changes anything. Over TCP, /metrics is public, but
// everything else needs the token of the job and a loopback address. The Host of a request must be
// an IP address, localhost, the name of this machine or the host of the configured address, so that
// a web page whose domain resolves to this machine is refused. The number of connections and the
// size and duration of requests are limited.
package live

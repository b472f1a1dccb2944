// Package live serves the current state of ranks over HTTP: a page, metrics for Prometheus, and
// JSON. A [Snapshot] holds the state of one rank.
//
// # Sockets
//
// Each rank has a [Server] that listens on a Unix socket in the folder of its job: <temporary
// folder>/symmem-<user id>/<job>/rank<N>.sock. Only the user can enter the folder. A server creates
// its socket under another name and renames the socket once it accepts connections. If a socket has
// its final name but refuses connections, the process of its rank must therefore have exited.
// [Sweep] removes the sockets of jobs in which all ranks have exited. Sweep runs when a rank of the
// same user opens a Server, and when symmem launch exits.
//
// # Page
//
// The page is made by package page and fetches its data every second. The data contain the latest
// events of each pool. A rank copies these events from the history of the pool while it holds the
// pool's lock. The server compares the events that are still available from all ranks of the pool.
//
// # Address
//
// If an address is configured, the lowest running rank on a machine also serves the states of
// all ranks on the machine over TCP. For each request, it reads the Snapshots of the other ranks
// from their sockets. Each of the other ranks keeps a connection to the lowest one. When that
// connection closes, the rank looks for the lowest rank again, and serves the address itself if
// there is no lower one. If the process of the lowest rank is killed, another rank therefore
// takes over as soon as the kernel has closed the connections of that process.
//
// Start must be called after all ranks have opened their Servers, so that no lower rank appears
// later.
//
// # What a client may do
//
// Only GET and HEAD are allowed, and no request changes anything. Over TCP, /metrics is public.
// Everything else is served only at a loopback address and only with the token of the job. The
// Host of a request must be an IP address, localhost, the name of this machine or the host of
// the configured address. Requests that a web page makes by letting its own domain resolve to
// this machine are therefore refused. The number of connections and the size and duration of
// requests are limited.
package live

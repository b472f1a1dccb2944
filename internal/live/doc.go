// Package live serves the current state of ranks over HTTP: a page, metrics for Prometheus, and
// JSON. It gets the state of a rank as a [Snapshot].
//
// # Sockets
//
// Each rank has a [Server] with a Unix socket in the folder of its job, which only the user can
// enter: <temporary folder>/symmem-<user id>/<job>/rank<N>.sock. A server creates its socket under
// another name and renames it when it accepts connections. If a socket under its final name refuses
// connections, its rank has ended. [Sweep] removes such sockets: when the next rank of the user
// opens a Server, and at the end of symmem launch.
//
// # Page
//
// The page is that of package page. It fetches its data each second. They contain the latest
// events of each pool, which a rank copies from the pool's history while it holds the pool's lock.
// The server compares the events that all ranks of the pool have.
//
// # Address
//
// With an address, the lowest living rank of a machine also serves all ranks of the machine over
// TCP. For each request, it reads the Snapshots of the others from their sockets. Each other rank
// has a connection to the lowest one. When that connection ends, the rank looks for the lowest rank
// again, and serves the address if there is no lower rank. So a successor takes over as soon as the
// kernel has closed the connections of a killed process.
//
// Start must be called when all ranks have opened their Servers. Later no lower rank appears.
//
// # What a client may do
//
// Only GET and HEAD are allowed, and no request changes anything. Over TCP, /metrics is public, and
// everything else needs the job's token and a loopback address. The host of a request must be an
// IP address, localhost, this machine or the host of the address. So a web page that resolves its
// own name to this machine is refused. Numbers of connections, sizes and times are limited.
package live

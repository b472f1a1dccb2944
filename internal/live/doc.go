// Package live serves the current state of ranks over HTTP: a page, metrics for Prometheus, and
// JSON. It knows nothing of the ranks but their Snapshots.
//
// # Sockets
//
// Each rank has a [Server] with a Unix socket in the folder of its job, which only the user can
// enter: <temporary folder>/symmem-<user id>/<job>/rank<N>.sock. A server creates its socket under another name and renames it when it
// accepts connections. A socket under its final name that refuses connections is therefore left from
// a rank that was killed. [Sweep] removes it: when the next rank of the user opens a Server, and at
// the end of symmem launch.
//
// # Address
//
// With an address, one rank of the machine also serves all ranks of the job over TCP: the lowest
// one that lives. It reads the Snapshots of the others from their sockets for each request. Each
// other rank has a connection to the lowest one. The end of that connection makes it look for
// the lowest rank again, and serve the address if no lower rank is left. So a successor takes over
// as soon as the kernel has closed the connections of a killed process.
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

// Package netlab simulates networks of machines on one host, for tests.
//
// A Machine has a separate network namespace and host name, and optionally a monotonic clock
// that is ahead of the host's. Each of its network interfaces is a TUN device. The test process
// reads the packets of all devices and forwards them. On the way, it delays, reorders and drops
// packets, as the Link between the two machines demands, with random numbers derived from a
// seed. Machines share memory and process IDs with the host.
//
// A lab needs root and /dev/net/tun. It leaves nothing behind: when the test process exits, the
// kernel kills the processes on the machines and removes the namespaces, which have no names.
//
// # Lock order
//
//	router.mu (a leaf)
package netlab

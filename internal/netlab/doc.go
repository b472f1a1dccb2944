// Package netlab simulates networks of machines on one host, for tests.
//
// A Machine has a separate network namespace and host name, and optionally a monotonic clock that
// is ahead of the host's. Each of its network interfaces is a TUN device. The test process reads
// the packets of all devices and forwards them. The Link between two machines determines how
// packets between them are delayed, reordered and dropped. The random delays and losses are derived
// from a seed. Machines share memory and process IDs with the host.
//
// A lab needs root and /dev/net/tun. When the test process exits, the kernel kills the processes on
// the machines and removes the namespaces, so a lab leaves nothing behind.
//
// # Lock order
//
//	router.mu (a leaf)
package netlab

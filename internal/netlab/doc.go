// Package netlab simulates networks of machines on one host, for tests.
//
// A Machine has its own network namespace and host name, and optionally its own monotonic clock.
// Each of its interfaces is a TUN device. The process of the test reads the packets of all devices
// and forwards them. It delays, reorders and drops packets according to the Link between two
// machines, using random numbers derived from a seed. Memory and process IDs are shared with the
// host.
//
// A lab needs root and /dev/net/tun. It leaves nothing behind: the namespaces have no names, and
// when the process of the test exits, the kernel kills the processes of the machines.
//
// # Lock order
//
//	router.mu (a leaf)
package netlab

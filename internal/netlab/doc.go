// Package netlab simulates networks of machines on one host, for tests.
//
// Each Machine has a separate network namespace and host name. The monotonic clock of a Machine may
// be ahead of the host's clock. Network interfaces are TUN devices. The test process reads the
// packets of all devices and forwards them.
// The Link between two machines determines how packets are delayed, reordered and dropped. Machines
// share memory and process IDs with the host.
//
// A Lab needs root and /dev/net/tun. When the test process exits, the kernel kills the processes on
// the machines and removes the namespaces.
//
// # Lock order
//
//	router.mu (a leaf)
package netlab

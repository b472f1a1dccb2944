// Package netlab simulates networks of machines on one host, for tests. Each Machine has a separate
// network namespace and host name, but shares memory and process IDs with the host. The test
// process forwards the packets of all network interfaces, which are TUN devices. A Lab needs root.
// When the test process exits, the kernel kills the processes on the machines. The package has one
// lock, router.mu.
package netlab

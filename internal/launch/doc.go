// Package launch starts the ranks of a job on this machine and supervises them until all of
// them have exited.
//
// Each rank gets the environment variables that torchrun sets, and the address and token of a store
// that the launcher serves (see package rendezvous). When a rank exits, the launcher publishes its
// exit in the store, so that other ranks do not wait for it.
//
// # Processes
//
// Every rank leads a separate process group, and the launcher signals whole groups. When a rank has
// exited, the launcher first kills the rest of the group. It reaps the rank afterwards, because the
// group ID may then be reused. If the launcher dies, the kernel kills the ranks, but not their
// children.
//
// After the first failure, the other ranks get a grace period, then SIGTERM, then SIGKILL.
//
// The launcher does not control a process that leaves its group (setsid). If such a process keeps
// the rank's output open, it delays the launcher by two seconds.
package launch

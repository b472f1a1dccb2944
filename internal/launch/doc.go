// Package launch starts the ranks of a job on this machine and supervises them until the last has
// ended.
//
// Each rank gets the variables of torchrun, so that programs run unchanged under either, and the
// address and token of a store that the launcher serves (package rendezvous). The port in
// MASTER_PORT is for PyTorch programs; symmem does not listen on it. The launcher publishes the end
// of a rank in the store, so that others do not wait for it.
//
// # Processes
//
// Every rank leads a separate process group. Signals go to whole groups. When a rank ends, the rest
// of its group is killed before the rank is reaped, while the group id cannot have been reused. The
// kernel kills a rank if the launcher dies for any reason; it does not kill the children of the
// rank.
//
// Ranks that have not ended 10 s after a SIGTERM from outside are killed, since a batch system
// sends only one.
//
// After the first failure the others get a grace period, then SIGTERM, then SIGKILL: 15 s at most.
// A stopped process cannot end, so SIGCONT follows every signal. After 2 s a message on standard
// error names the ranks that the launch still waits for.
//
// The launcher does not control a process that leaves its group (setsid). If such a process holds
// the rank's output open, it delays the launcher by two seconds.
package launch

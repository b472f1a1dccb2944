// Package launch starts the ranks of a job on this machine and supervises them until all have
// ended.
//
// Each rank gets the environment variables that torchrun sets, so that programs run unchanged under
// both launchers, and the address and token of a store that the launcher serves (package
// rendezvous). The port in MASTER_PORT is for PyTorch programs; symmem does not listen on it. When
// a rank ends, the launcher publishes its end in the store, so that other ranks do not wait for it.
//
// # Processes
//
// Every rank leads a separate process group, and the launcher signals whole groups. When a rank has
// ended, the launcher kills the rest of the rank's group before it reaps the rank, because the
// group ID cannot be reused before that. If the launcher dies for any reason, the kernel kills the
// ranks, but not their children.
//
// Ranks that have not ended 10 s after a SIGTERM from outside are killed, since a batch system may
// send only one signal.
//
// After the first failure the other ranks get a grace period, then SIGTERM, then SIGKILL. This
// takes at most 15 s. A stopped process cannot end, so SIGCONT follows every signal. After 2 s a
// message on standard error names the ranks that are still running.
//
// The launcher does not control a process that leaves its group (setsid). If such a process keeps
// the rank's output open, it delays the launcher by two seconds.
package launch

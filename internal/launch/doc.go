// Package launch starts the ranks of a job on this machine and supervises them until all have
// ended.
//
// Each rank gets the environment variables that torchrun sets, so programs run unchanged under
// torchrun and this launcher. Each rank also gets the address and token of a store that the
// launcher serves (package rendezvous). The port in MASTER_PORT is for PyTorch programs; symmem
// does not listen on it. When a rank ends, the launcher publishes that in the store, so that other
// ranks do not wait for it.
//
// # Processes
//
// Every rank leads a separate process group, and the launcher signals whole groups. When a rank has
// ended, the launcher first kills the rest of the rank's group and then reaps the rank. Until the
// rank is reaped, its group ID cannot be reused. If the launcher dies for any reason, the kernel
// kills the ranks, but not their children.
//
// If the launcher gets a SIGTERM, it forwards the signal and kills ranks that have not ended after
// 10 s, because a batch system may send no second signal.
//
// After the first failure the other ranks get a grace period, then SIGTERM, then SIGKILL. This
// takes at most 15 s. A stopped process cannot end, so the launcher sends SIGCONT after every
// signal. After 2 s a message on standard error names the ranks that are still running.
//
// The launcher does not control a process that leaves its group (setsid). Such a process delays the
// launcher by two seconds if it keeps the rank's output open.
package launch

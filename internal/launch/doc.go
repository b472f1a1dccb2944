// Package launch starts the ranks of a job on this machine and supervises them until all of them
// have exited. Each rank gets the environment variables that torchrun sets, and the address and
// token of a store that the launcher serves (see package rendezvous).
//
// Every rank leads a process group, and the launcher signals whole groups. When a rank has exited,
// the launcher kills the rest of its group before it reaps the rank, because the group ID may then
// be reused. If the launcher dies, the kernel kills the ranks, but not their children.
package launch

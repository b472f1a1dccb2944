// Package launch starts the ranks of a job on this machine and looks after them until the last
// is gone.
//
// Each rank gets the variables of torchrun, so that programs run unchanged under either, and the
// address and token of a store that the launcher serves (package rendezvous). The port in
// MASTER_PORT is for PyTorch programs; nothing of ours listens on it. The end of a rank is told to
// the others in that store, so that they do not wait for one that will not come.
//
// # Processes
//
// Every rank leads a process group of its own. Signals go to whole groups, and when a rank ends,
// what is left of its group is killed before the rank is reaped, while the number of the group
// cannot have passed to others. A rank is killed by the kernel if the launcher dies, however it
// dies; its children are not, unless they end with it.
//
// Ranks that have not ended 10 s after a SIGTERM from outside are killed: a batch system sends one,
// and does not send another.
//
// After the first failure the others have a grace, then SIGTERM, then SIGKILL: 15 s at most. A
// process that is stopped cannot end, so SIGCONT follows every signal, and standard error says
// after 2 s for whom the launch still waits.
//
// A process that leaves its group (setsid) is out of our reach. It holds up the launcher for two
// seconds if it holds the rank's output open.
package launch

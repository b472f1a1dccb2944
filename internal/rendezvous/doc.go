// Package rendezvous is how the ranks of one job find each other: it says which rank this
// process is, and gives all ranks one store of small keys and values.
//
// # The store
//
// The store speaks the wire protocol of PyTorch's TCPStore, both as client and as server. As a
// client it uses only the queries that every server since PyTorch 2.4 has, so that a job under
// torchrun needs no second server. The Server answers all of them, so that PyTorch programs can
// use ours.
//
// The protocol has no authentication and no user of its own. Ours closes both gaps without
// leaving it: a Server on TCP requires a Token, which travels as the key of a CHECK query; on a
// Unix socket both ends compare the user of the other end with their own. The token crosses TCP
// in clear text: it keeps other jobs and scanners out, not somebody who reads the network.
//
// # The ranks
//
// Discover reads the environment, in this order: explicit Options, torchrun, Open MPI, MPICH
// (PMI-1), Slurm, and otherwise one process alone. A family of variables that is only half set
// is an EnvironmentError that lists each variable with its value; guessing would start two jobs
// where one was meant. Connect turns the World into a Client, and returns once every rank is
// there, or with an error that names the ranks that did not come.
//
// Our store also knows which ranks have ended. A launcher reports how its processes have ended.
// Every rank keeps one connection on which it has sent its rank (the greeting), and the server sees
// when that connection ends. Connect does not wait for ranks that have ended, and the context of
// Guard ends soon after one of its ranks has. Where rank 0 serves the store, the end of all
// connections to it is the end of rank 0. A process that is stopped keeps its connections and has
// not ended. PyTorch's own store knows nothing of that: torchrun ends the whole job itself, and
// without torchrun only timeouts are left.
//
// # Unauthenticated connections
//
// A connection has 5 s to send VALIDATE and the token. The number of connections that have not done
// so yet is limited; the oldest is closed first. Clients that lose their connection by that try
// again.
//
// # Caveats
//
// Some platforms (Kubeflow's PyTorchJob, and those that copied it) set RANK and WORLD_SIZE per
// node, to be given on to torchrun, and not per process. Without LOCAL_RANK and LOCAL_WORLD_SIZE
// Discover therefore refuses them. Start the processes by torchrun or by symmem's launcher.
//
// An abstract Unix socket belongs to a network namespace: ranks in different containers of one
// machine do not see each other's, and need MASTER_ADDR, MASTER_PORT and SYMMEM_TOKEN instead,
// with a LOCAL_WORLD_SIZE that counts the ranks of the container.
//
// # Lock order
//
//	Server.mu
//	  outbox.mu
//	watch.mu (a leaf)
//	Client.mu (a leaf: nothing is called while it is held)
//	services.mu (held to listen, so that two members do not open one address)
package rendezvous

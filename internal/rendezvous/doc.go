// Package rendezvous connects the ranks of one job. It determines this process's rank and provides
// a store of small keys and values that all ranks share.
//
// # The store
//
// Client and Server use the wire protocol of PyTorch's TCPStore. The Client sends only queries that
// every PyTorch server since version 2.4 supports, so a job under torchrun needs no second server.
//
// The protocol has no authentication. On TCP, a Server therefore requires a Token, which clients
// send as the key of a CHECK query. On a Unix socket, each side checks that the other side runs as
// the same user. The token is sent in clear text. It keeps out other jobs and port scanners, but
// not an attacker who can read the network's traffic.
//
// # The ranks
//
// Discover looks for the rank in this order: explicit Options, then the variables of torchrun, Open
// MPI, MPICH (PMI-1) and Slurm. Without any of these, the job is a single process. If only some
// variables of a launcher are set, Discover returns an EnvironmentError, because a wrong guess
// could start two jobs instead of one. Connect waits until all ranks have joined.
//
// The Server also records which ranks have ended. A launcher reports how its processes exited, and
// every rank keeps a connection open over which it has sent a greeting with its rank. When that
// connection is closed, the rank has ended. If rank 0 serves the store, a lost store means that
// rank 0 has ended. A stopped process keeps its connections and does not count as ended. PyTorch's
// store does not record ended ranks.
//
// # Unauthenticated connections
//
// A client must send VALIDATE and the token within 5 s. If too many connections have not done so
// yet, the server closes the oldest ones, and their clients retry.
//
// # Caveats
//
// Some platforms (Kubeflow's PyTorchJob and its derivatives) set RANK and WORLD_SIZE per node, as
// input for torchrun, rather than per process. Discover therefore rejects these two variables if
// LOCAL_RANK and LOCAL_WORLD_SIZE are not set.
//
// An abstract Unix socket belongs to a network namespace, so ranks in different containers on one
// machine cannot reach each other's sockets. Such ranks need MASTER_ADDR, MASTER_PORT and
// SYMMEM_TOKEN, and a LOCAL_WORLD_SIZE that counts the ranks in the container.
//
// # Lock order
//
//	Server.mu
//	  outbox.mu
//	watch.mu (a leaf)
//	Client.mu (a leaf: no other lock is acquired while it is held)
//	services.mu (held while listening, so that two members do not listen on the same address)
package rendezvous

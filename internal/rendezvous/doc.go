// Package rendezvous connects the ranks of one job. It determines the rank of this process, and
// provides a store of small keys and values that all ranks share.
//
// # The store
//
// Client and Server use the wire protocol of PyTorch's TCPStore. The Client sends only queries that
// every server since PyTorch 2.4 supports, so a job under torchrun needs no second server. The
// Server supports all queries, so PyTorch programs can use it.
//
// The protocol has no authentication and no notion of a user. This package adds both within the
// protocol. A Server on TCP requires a Token, which is sent as the key of a CHECK query. On a Unix
// socket, each side compares the other side's user with its own. The token is sent in clear text,
// so it excludes other jobs and port scanners, but not an attacker who can read the network.
//
// # The ranks
//
// Discover reads the environment in this order: explicit Options, torchrun, Open MPI, MPICH
// (PMI-1), Slurm. Without any of these there is a single process. If only some variables of a
// family are set, Discover returns an EnvironmentError that lists each variable with its value. It
// does not guess, because a wrong guess would start two jobs instead of one. Connect returns a
// Client for a World once all ranks have joined, or an error that names the absent ranks.
//
// The Server also records which ranks have ended. It has two sources. A launcher reports how its
// processes have ended. Every rank keeps one connection open on which it has sent a greeting with
// its rank; the server records the end of that connection. Connect does not wait for ranks that
// have ended, and a context of Guard ends soon after one of its ranks. If rank 0 serves the store,
// the loss of the store means that rank 0 has ended. A stopped process keeps its connections and
// does not count as ended. PyTorch's store does not record ends: torchrun ends the whole job when a
// rank fails, and without torchrun only timeouts detect a lost rank.
//
// # Unauthenticated connections
//
// A client must send VALIDATE and the token within 5 s. The number of connections that have not yet
// done so is limited: the server closes the oldest ones. Their clients retry.
//
// # Caveats
//
// Some platforms (Kubeflow's PyTorchJob and its derivatives) set RANK and WORLD_SIZE per node, as
// input for torchrun, and not per process. Without LOCAL_RANK and LOCAL_WORLD_SIZE, Discover
// therefore refuses them. Start the processes with torchrun or with symmem launch.
//
// An abstract Unix socket belongs to a network namespace: ranks in different containers of one
// machine cannot reach each other's sockets. They need MASTER_ADDR, MASTER_PORT and SYMMEM_TOKEN
// instead, with a LOCAL_WORLD_SIZE that counts the ranks of the container.
//
// # Lock order
//
//	Server.mu
//	  outbox.mu
//	watch.mu (a leaf)
//	Client.mu (a leaf: no other lock is acquired while it is held)
//	services.mu (held while listening, so that two members do not open one address)
package rendezvous

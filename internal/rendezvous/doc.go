// Package rendezvous connects the ranks of one job: it finds the rank of this process, and gives
// all ranks one store of small keys and values.
//
// # The store
//
// The store speaks the wire protocol of PyTorch's TCPStore, both as client and as server. The
// client uses only queries that every server since PyTorch 2.4 supports, so that a job under
// torchrun needs no second server. The Server supports all queries, so that PyTorch programs can
// use it.
//
// The protocol has no authentication and no notion of a user. This package adds both within the
// protocol: a Server on TCP requires a Token, which is sent as the key of a CHECK query; on a Unix
// socket both sides compare the user of the other side with their own. The token crosses TCP in
// clear text: it excludes other jobs and port scanners, not an attacker who can read the network.
//
// # The ranks
//
// Discover reads the environment in this order: explicit Options, torchrun, Open MPI, MPICH
// (PMI-1), Slurm, and otherwise a single process. If only some variables of a family are set, it
// returns an EnvironmentError that lists each variable with its value; guessing would start two
// jobs instead of one. Connect turns the World into a Client, and returns once all ranks have
// joined, or with an error that names the ranks that did not.
//
// The Server also records which ranks have ended. A launcher reports how its processes have ended.
// In addition every rank sends its rank (the greeting) on one connection that it keeps open, and
// the server notices when that connection ends. Connect does not wait for ranks that have ended,
// and the context of Guard ends soon after one of its ranks. If rank 0 serves the store, the loss
// of the store means that rank 0 has ended. A stopped process keeps its connections and does not
// count as ended. PyTorch's own store does not record ends: torchrun itself ends the whole job, and
// without torchrun only timeouts detect a lost rank.
//
// # Unauthenticated connections
//
// A connection has 5 s to send VALIDATE and the token. The number of connections that have not done
// so is limited; the oldest is closed first. Clients that lose their connection for this reason
// retry.
//
// # Caveats
//
// Some platforms (Kubeflow's PyTorchJob and its derivatives) set RANK and WORLD_SIZE per node, as
// input for torchrun, and not per process. Without LOCAL_RANK and LOCAL_WORLD_SIZE Discover
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
//	Client.mu (a leaf: nothing is called while it is held)
//	services.mu (held while listening, so that two members do not open one address)
package rendezvous

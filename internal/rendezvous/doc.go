// Package rendezvous connects the ranks of one job. It determines this process's rank and provides
// a store of small keys and values that all ranks share. The Server records in the store which
// ranks have ended.
//
// Client and Server use the wire protocol of PyTorch's TCPStore, which has no authentication. On
// TCP, a Server therefore requires a Token, which clients send as the key of a CHECK query, in
// clear text. The token keeps out other jobs and port scanners, but not an attacker who can read
// the network's traffic. On a Unix socket, each side checks that the other side runs as the same
// user.
//
// An abstract Unix socket belongs to a network namespace, so ranks in different containers on one
// machine need MASTER_ADDR, MASTER_PORT and SYMMEM_TOKEN, and a LOCAL_WORLD_SIZE that counts the
// ranks in the container.
//
// Lock order:
//
//	Server.mu
//	  outbox.mu
//	endWatcher.mu (a leaf: no other lock is acquired while it is held)
//	linkSet.mu (a leaf)
//	services.mu (held while listening, so that two members do not listen on the same address)
package rendezvous

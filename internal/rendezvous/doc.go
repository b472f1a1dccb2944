// Package rendezvous connects the ranks of one job. It determines this process's rank and provides
// a store of small keys and values that all ranks share. The Server records which ranks have ended.
//
// The wire protocol is PyTorch's TCPStore protocol, which has no authentication. On TCP, a Server
// requires a Token, which is sent in clear text. It keeps out other jobs, but not an attacker who
// can read the network's traffic. On a Unix socket, each side checks that the other side runs as
// the same user.
//
// Lock order:
//
//	Server.mu
//	  outbox.mu
//	endWatcher.mu (a leaf: no other lock is acquired while it is held)
//	linkSet.mu (a leaf)
//	services.mu (held while listening, so that two members do not listen on the same address)
package rendezvous

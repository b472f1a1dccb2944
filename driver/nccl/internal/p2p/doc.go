// Package p2p moves messages (Send, Recv) between two ranks of one machine, without NCCL, whose own
// occupy the communicator until the other side comes.
//
// A Send copies its buffer to memory of the sender's GPU (staging) in stream order, and tells the
// receiver at the call, in memory of the host that both share (mailbox): the stream is free at
// once. A Recv belongs to the message that package message says. Its stream waits for a word of a
// descriptor, and then runs a kernel that copies what the descriptor names. The host writes both
// once the message is there, and makes no call to CUDA for that: such a call may wait for a thread
// that waits for a stream, and the stream for the message.
//
// # States
//
// Messages are open once Open has found that all ranks can; else the owner refuses them (Known).
// They are stopped and closed with their group; where a stream has yet to come past a message, what
// it uses stays for as long as the process (Device.Late).
//
// A place of a pair has two words: full is 1 from when the message is there until the receiver
// comes for it, taken is 1 from when it was copied until the sender uses the place again. Values of
// words are constants, so that captured messages can be replayed: what changes is told at the
// launch. A captured Send has its own memory, and waits in a replay until the message of the replay
// before was copied.
//
// # Locks
//
// Group.Mu, the owner's lock, guards what this rank sends (outbox); inbox.mu what it receives, and
// the lists of what its streams have not come past. No call of CUDA is made with inbox.mu held. The
// order is that of all packages of the backend: see package nccl.
//
// # Lock order
//
//	inbox.mu
//	Device.mu
package p2p

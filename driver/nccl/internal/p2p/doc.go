// Package p2p moves messages (Send, Recv) between two ranks of one machine, without NCCL, whose own
// occupy the communicator until the other side comes.
//
// A Send copies its buffer to memory of the sender's GPU (staging) in stream order, and announces
// it to the receiver at the call, in memory of the host that both share (mailbox): the stream is
// free at once. A Recv belongs to the message that package message says. Its stream waits for a
// word of a descriptor, and then runs a kernel that copies what the descriptor names. The host
// writes both once the message is there, and makes no call to CUDA for that: such a call may wait
// for a thread that waits for a stream, and the stream for the message.
//
// # States of a group's messages
//
//	none     the ranks cannot: the owner refuses messages (Known)
//	open     from Open on, if all ranks are on one machine; Map maps what the peers have
//	stopped  the group has ended: no message is delivered any more (stop)
//	closed   what they had is given back (Close)
//
// Close stops them, and closes them unless a stream has yet to come past a message, or a kernel of
// the process is stuck: then what they use stays for as long as the process. The owner ends waits
// before (Release), and again and again if streams come too late for that (ReleaseLate,
// Device.Late). inbox.mu guards stopped, the owner's lock closed.
//
// # States of a message
//
// A slot of a pair has two words: full is 1 from when the message is there until the receiver
// comes for it, taken is 1 from when it was copied until the sender uses the slot again. Values of
// words are constants, so that captured messages can be replayed: what changes is sent at the
// launch.
//
// A Send gets a slot and a block of staging (stage), for which it waits at the call as long as that
// may help, is queued (queueSend), is announced to the peer (announce), and gives both back once
// its message is taken (reclaim). A captured Send has its slot and block for as long as its graph,
// and waits in a replay until the message of the replay before was taken. Where the group has ended
// it takes that one back, by full, or gives the receiver's GPU time to copy it (End.release).
//
// A Recv is posted before its wait is queued (post, expect). Package message claims a message for
// it, whose header this rank reads (readHeaders), and the ends are compared (match). It is given
// its message (take) when
//
//   - it is not one of a graph, or the launch before has been given its own and the stream waits;
//   - of a graph, the message that had the same slot before has been given to a Recv;
//   - full is 1, and the sender does not take such messages back;
//   - the segment is mapped, which a goroutine does where it was not when the group connected.
//
// Or it is refused, when the group has ended, and copies nothing (End.refuse). In both cases its
// stream goes on (handled), and once that has come past the kernel the descriptor is used again. A
// goroutine looks for messages as long as receives are open (deliver).
//
// # Locks
//
// Group.Mu, the owner's lock, guards what this rank sends (outbox), and is held while a Send waits
// for room; inbox.mu what it receives, and the lists of what its streams have not come past. No
// call of CUDA is made with inbox.mu held. The order is that of all packages of the backend: see
// package nccl.
//
// # Lock order
//
//	inbox.mu
//	Device.mu
package p2p

// Package p2p moves messages (Send, Recv) between two ranks of one machine without NCCL, whose own
// Send and Recv occupy the communicator until the other side arrives.
//
// A Send copies its buffer to staging memory on the sender's GPU in stream order, and announces it
// to the receiver during the call, in host memory that both share (mailbox), so the stream is free
// at once. A Recv is matched with a message by package message. Its stream waits for a word of a
// descriptor and then runs a kernel that copies the data that the descriptor names. The host fills
// in the descriptor and sets the word once the message is there, without a call to CUDA: such a
// call might wait for a thread that waits for a stream, and the stream for the message.
//
// # States of a group's messages
//
//	none     the ranks cannot exchange messages: the owner refuses them (Known)
//	open     after Open, if all ranks are on one machine; Map maps the peers' memory
//	stopped  the group has ended: no message is delivered any more (stop)
//	closed   their memory is freed (Close)
//
// Close stops the messages. It closes them unless a stream has yet to pass a message, or a kernel
// of the process is stuck: then their memory is kept until the process ends. The owner ends waits
// before that (Release), and repeatedly if streams arrive too late (ReleaseLate, Device.Late).
// inbox.mu guards stopped, the owner's lock closed.
//
// # States of a message
//
// Each slot of a pair has two words: full is 1 from the arrival of the message until the receiver
// comes for it, taken is 1 from the end of the copy until the sender reuses the slot. The values of
// the words are constants, so that captured messages can be replayed: whatever changes is sent at
// the launch.
//
// A Send gets a slot and a block of staging memory (stage), for which the call waits as long as
// that can help. It is queued (queueSend), announced to the peer (announce), and returns both once
// its message is taken (reclaim). A captured Send keeps its slot and block for the lifetime of its
// graph, and a replay waits until the message of the previous replay was taken. If the group has
// ended, the Send takes that message back through full, or gives the receiver's GPU time to copy it
// (End.release).
//
// A Recv is posted before its wait is queued (post, expect). Package message claims a message for
// it, this rank reads the message's header (readHeaders), and the two ends are compared (match).
// The Recv gets its message (take) when all of these hold: it is not captured, or the previous
// launch has got its message and the stream waits again; if it is captured, the message that had
// the same slot before was given to a Recv; full is 1, and the sender does not take such messages
// back; and the segment is mapped, which a goroutine does if it was not mapped when the group
// connected. Or the Recv is refused, when the group has ended, and copies nothing (End.refuse). In
// both cases its stream continues (handled), and once the stream has passed the kernel, the
// descriptor is reused. A goroutine looks for messages as long as receives are open (deliver).
//
// # Locks
//
// Group.Mu, the owner's lock, guards the sending side (outbox), and is held while a Send waits for
// space. inbox.mu guards the receiving side, and the lists of ends that streams have yet to pass.
// No CUDA call is made with inbox.mu held. Package nccl documents the order of all locks of the
// backend.
//
// # Lock order
//
//	inbox.mu
//	Device.mu
package p2p

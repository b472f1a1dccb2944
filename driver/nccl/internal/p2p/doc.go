// Package p2p implements messages (Send, Recv) between two ranks of one machine. It does not use
// NCCL, whose Send and Recv block the communicator until the peer makes the matching call.
//
// A Send copies its buffer to staging memory on the sender's GPU in stream order, and announces the
// message to the receiver during the call, in host memory that both share (mailbox). So the stream
// does not wait for the receiver. A Recv is matched with a message by package message. Its stream
// waits for a word of a descriptor and then runs a kernel that copies the data named by the
// descriptor. The host fills in the descriptor and sets the word once the message has arrived. It
// does so without a call to CUDA, which might wait for a thread that waits for this stream.
//
// # States of a group's messages
//
//	none     the ranks cannot exchange messages: the owner refuses them (Available)
//	open     after Open, if all ranks are on one machine; Map maps the peers' memory
//	stopped  the group has ended: no message is delivered any more (stop)
//	closed   their memory is freed (Close)
//
// Close stops the messages. It closes them unless a stream has an unfinished message, or a kernel
// of the process is stuck: then their memory stays allocated until the process ends. The owner ends
// waits before that (Release), and repeatedly if streams reach their messages too late
// (ReleaseLate, Device.Late). inbox.mu guards the state stopped, the owner's lock the state closed.
//
// # States of a message
//
// Each slot of a pair of ranks has two words. full is 1 from the arrival of a message until the
// receiver claims it; taken is 1 from the end of the copy until the sender reuses the slot. The
// values of the words are constants, so that captured messages can be replayed: everything that
// differs between launches is in the header.
//
// A Send gets a slot and a block of staging memory (stage); the call waits for both as long as that
// can help. The Send is queued (queueSend) and announced to the peer (announce). Slot and block are
// freed once its message was taken (reclaim). A captured Send keeps them for the lifetime of its
// graph, and a replay waits until the message of the previous replay was taken. If the group has
// ended, the Send takes that message back through full, or gives the receiver's GPU time to copy it
// (End.release).
//
// A Recv is posted before its wait is queued (post, expect). Package message claims a message for
// it, this rank reads the message's header (readHeaders), and the two ends are compared (match).
// The Recv gets its message (accept) when all of these hold:
//
//   - It is not captured, or the previous launch got its message and the stream waits again.
//   - If the message is captured, the previous one in its slot was given to a Recv.
//   - full is 1, and the sender does not take messages back.
//   - The segment is mapped. A goroutine maps it if that was not done when the group connected.
//
// If the group has ended, the Recv is refused instead and copies nothing (End.refuse). In both
// cases its stream continues (handled), and once the stream has passed the kernel, the descriptor
// is reused. A goroutine polls for messages as long as receives are open (deliver).
//
// # Locks
//
// Group.Mu, the owner's lock, guards the sending side (outbox) and is held while a Send waits for
// space. inbox.mu guards the receiving side and the lists of unfinished ends. No CUDA call is made
// with inbox.mu held. Package nccl documents the order of all locks of the backend.
//
// # Lock order
//
//	inbox.mu
//	Device.mu
package p2p

// Package p2p implements messages (Send, Recv) between two ranks of one machine. It does not use
// NCCL, whose Send and Recv block the communicator until the peer makes the matching call.
//
// A Send copies its buffer to staging memory on the sender's GPU in stream order, so that the
// stream does not wait for the receiver. During the call it also announces the message to the
// receiver, in host memory that both ranks share (mailbox). Package message matches each Recv
// with a message. Each Recv has a descriptor, which is a block of host memory. The Recv's stream
// waits for a word in the descriptor, and then runs a kernel that copies the data to which the
// descriptor refers. Once the message has arrived, the host fills in the descriptor and sets the
// word. The host must not call CUDA to do so, because the call might wait for a thread that is
// itself waiting for this stream.
//
// # States of a group's messages
//
//	none     the ranks cannot exchange messages, so the owner refuses them (Available)
//	open     after Open, if all ranks are on one machine; Map maps the peers' memory
//	stopped  the group has failed or is closed, and messages are no longer delivered (stop)
//	closed   the memory is freed (Close)
//
// Close stops the messages and frees their memory. If a stream has an unfinished message or a
// kernel of the process is stuck, the memory stays allocated until the process exits. Before Close,
// the owner releases the streams that are waiting (Release). If some streams reach their messages
// only later, the owner repeats this (ReleaseLate, Device.Late). inbox.mu guards the state stopped,
// and the owner's lock guards the state closed.
//
// # States of a message
//
// For each pair of sender and receiver, there is a fixed number of slots, and each message uses
// one of them. A slot has two words: full is 1 from the arrival of a message until the receiver
// claims it, and taken is 1 from the end of the copy until the sender reuses the slot. Captured
// messages can be replayed, because every replay writes the same values to the two words.
// Only the header differs between replays.
//
// A Send allocates a slot and a block of staging memory (stage). If none is free, it waits as
// long as one may become free. It is then queued (queueSend) and announced to the peer
// (announce). The slot and the block are freed once the receiver has copied the message
// (reclaim). A captured Send keeps them for the lifetime of its graph, and each replay waits
// until the message of the previous replay has been copied. If the group has failed or is closed,
// the Send withdraws that message by clearing full. If the receiver has already claimed that
// message, the Send instead gives the receiver's GPU time to copy it (End.release).
//
// A Recv is posted before its wait is queued (post, expect). Package message then claims a
// message for the Recv, this rank reads the header of that message (readHeaders), and the Send
// and the Recv are compared (match). The Recv accepts its message (accept) when all of these
// conditions hold:
//
//   - If the Recv is captured, the Recv of the graph's previous launch has accepted a message,
//     and the stream is waiting again.
//   - If the message is captured, a Recv has accepted the previous message in its slot.
//   - full is 1, and the sender is not withdrawing messages.
//   - The segment of staging memory that holds the message is mapped. If it was not mapped when
//     the group connected, a goroutine maps it.
//
// If the group has failed or is closed, the Recv is refused instead and copies nothing
// (End.refuse). Whether a Recv has accepted a message or has been refused, it counts as handled,
// and its stream continues. The descriptor is reused once the copy kernel has run. A goroutine
// polls for messages as long as receives are pending (deliver).
//
// # Locks
//
// Group.Mu, the owner's lock, guards the sending side (outbox) and is held while a Send waits for
// space. inbox.mu guards the receiving side (inbox) and the lists of unfinished sends and
// receives. No CUDA call is made with inbox.mu held. Package nccl documents the order of all
// locks of the backend.
//
// # Lock order
//
//	inbox.mu
//	Device.mu
package p2p

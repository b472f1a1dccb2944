// Package p2p implements messages (Send, Recv) between two ranks of one machine. It does not use
// NCCL, whose Send and Recv block the communicator until the peer makes the matching call.
//
// A Send copies its buffer to staging memory on the sender's GPU, so that its stream does not wait
// for the receiver. It also announces the message in the mailbox, which is host memory that both
// ranks share. Package message matches each Recv with a message.
//
// Each Recv has a descriptor in host memory. Its stream waits for a word in the descriptor, and
// then runs a kernel that copies the data. Once the message has arrived, the host fills in the
// descriptor and sets the word, without calling CUDA: the call might wait for a thread that is
// itself waiting for this stream.
//
// # States of a group's messages
//
//	none     the ranks cannot exchange messages (Available)
//	open     after Open; Map maps the peers' memory
//	stopped  the group has failed or is closed, and messages are no longer delivered (stop)
//	closed   the memory is freed (Close)
//
// inbox.mu guards the state stopped, and the owner's lock guards the state closed.
//
// # States of a message
//
// A Send allocates a slot and a block of staging memory (reserve), is queued (queueSend) and is
// announced (announce). A Recv is posted before its wait is queued (post, addReceive) and claims a
// message. The Send and the Recv are compared once this rank has read the message's header (match).
// Once the data has arrived, the Recv accepts the message (accept). The slot and the block are
// freed after the copy (reclaim).
//
// A captured Send keeps its slot and its block for the lifetime of the graph, and each replay waits
// until the previous message has been copied. Only the header differs between replays.
//
// If the group fails or closes, a Recv is refused and copies nothing (End.refuse), and a captured
// Send withdraws the previous message (End.release). A Recv that has accepted a message or has been
// refused is handled, and its stream continues.
//
// # Locks
//
// Group.Mu, the owner's lock, guards the sending side (outbox) and is held while a Send waits for
// space. inbox.mu guards the receiving side (inbox) and the lists of unfinished sends and receives.
// No CUDA call is made with inbox.mu held.
//
// # Lock order
//
//	inbox.mu
//	Device.mu
package p2p

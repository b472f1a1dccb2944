// Package p2p implements messages (Send, Recv) between two ranks of one machine without NCCL
// (docs/design/messages.md). A Send copies its buffer to staging memory on the sender's GPU, so
// that its stream does not wait for the receiver. It announces the message in the mailbox, host
// memory that both ranks share. The stream of a Recv waits for a word in a descriptor in host
// memory, and then runs a kernel that copies the data. The host sets this word without calling
// CUDA, because the call might wait for a thread that is itself waiting for this stream.
//
// # States of a group's messages
//
//	none     the ranks cannot exchange messages (Available)
//	open     after Open; Map maps the peers' memory
//	stopped  the group has failed or is closed, and messages are no longer delivered (stop)
//	closed   the memory is freed (Close)
//
// # States of a message
//
// A Send allocates a slot and a block of staging memory (reserve), is queued (queueSend) and is
// announced (announce). A Recv is posted before its wait is queued (post, addReceive) and is
// assigned a message. The two are compared once this rank has read the message's header (match).
// Once the data has arrived, the Recv accepts the message (accept). The slot and the block are
// freed after the copy (reclaim).
//
// A captured Send keeps its slot and its block for the lifetime of the graph, and each replay waits
// until the previous message has been copied.
//
// If the group fails or closes, a Recv is refused and copies nothing (End.refuse), and a captured
// Send withdraws the previous message (End.release). A Recv that has accepted a message or has been
// refused is handled, and its stream continues.
//
// # Locks
//
// Group.Mu, the owner's lock, guards the sending side (outbox) and the state closed, and is held
// while a Send waits for space. inbox.mu guards the receiving side (inbox), the state stopped, and
// the lists of unfinished sends and receives. No CUDA call is made with inbox.mu held.
//
// # Lock order
//
//	inbox.mu
//	Device.mu
package p2p

// Package handoff hands file descriptors of shared memory to the other ranks of a machine.
//
// Every process runs one Server on a Unix socket in the abstract name space, so that nothing is
// left in a file system when it is killed. Peers connect with a Peer and ask for what the owner
// has exported under a Key; the answer carries the descriptor. Frames have a fixed size, so no
// length that a peer sends is ever believed.
//
// Who may ask: processes of the same user (the kernel tells the user id; it cannot be forged)
// that know the world's token, which travels through the store that the ranks share.
//
// A Peer also stands for the life of the other process: Lost is closed when it ends.
package handoff

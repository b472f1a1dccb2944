// Package handoff passes file descriptors of shared memory to the other ranks of a machine.
//
// Every process runs one Server on a Unix socket in the abstract name space, so a killed process
// leaves nothing in a file system. Peers connect with a Peer and request the file that the owner
// has exported under a Key; the answer carries the descriptor. Frames have a fixed size, so no
// length from a peer is trusted.
//
// The server answers only processes of the same user (as reported by the kernel, so it cannot be
// forged) that know the world's token, which the ranks share through the store.
//
// A Peer also monitors the other process: Watch becomes readable when it ends.
package handoff

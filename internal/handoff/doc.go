// Package handoff sends file descriptors of shared memory to the other ranks on a machine.
//
// Every process runs one Server on a Unix socket in the abstract namespace, so that a killed
// process leaves no file behind. Other processes connect to the Server with a Peer and request the
// file exported under a Key. Requests and responses have fixed sizes, so neither side has to trust
// a length that the other sends.
//
// The server answers only processes of the same user that know the world's token, which the ranks
// share through the store.
//
// A Peer also monitors the other process: the descriptor returned by Watch becomes readable when
// that process exits.
package handoff

// Package handoff sends file descriptors of shared memory to the other ranks of a machine.
//
// Every process runs one Server on a Unix socket in the abstract namespace, so that a killed
// process leaves no file behind. Other processes connect to the Server with a Peer and request the
// file that is exported under a Key. The response contains the file descriptor. Requests and
// responses have fixed sizes, so no length from a peer has to be trusted.
//
// The server answers only processes of the same user that know the world's token, which the ranks
// share through the store. The kernel reports the user, so a process cannot forge it.
//
// A Peer also monitors the other process: Watch becomes readable when that process ends.
package handoff

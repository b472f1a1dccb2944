// Package handoff sends file descriptors of shared memory to the other ranks on a machine.
//
// Every process runs one Server on a Unix socket in the abstract namespace, so that a killed
// process leaves no file. A Peer requests the file that another process exports under a Key.
// Requests and responses have fixed sizes, so neither side trusts a length from the other.
//
// The server answers only processes of the same user with the token of the job, which ranks share
// through the store.
package handoff

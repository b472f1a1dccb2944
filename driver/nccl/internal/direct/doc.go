// Package direct has what the kernels of the direct path (package kernels) share in a group: the
// memory that they write to each other, their order, and the record of their launches.
//
// # Exchange memory
//
// An Exchange is open on all ranks of a group or on none, and closed once no kernel of the group
// runs any more, nor will one. Its report is where kernels and the host speak; what a closed one
// has said is kept. Stop ends kernels that wait, and those to come, by a store.
//
// # Order
//
// Kernels of one group never run at once on a rank: they share exchange memory, and the number of
// the call. Nor does one run at the same time as one of NCCL of the group, since the two may not
// fit on a GPU together. Turns orders launches by events, whatever streams they are on; two of
// NCCL's are left to it. Once another library has captured a call, whose replays are not seen,
// every launch waits for one event and records it anew; so does each capture, before its first call
// and behind its last (Recording).
//
// # Launches
//
// Kernels count calls, and so does this rank: Launches finds the call of a report by its number and
// digest, and calls in captures of other libraries by the digest alone.
//
// # Locks
//
// Turns and Recordings are guarded by the lock of their group. The order is that of all packages of
// the backend: see package nccl.
//
// # Lock order
//
//	Launches.mu
//	Exchange.mu
package direct

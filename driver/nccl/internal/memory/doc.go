// Package memory manages the memory of a rank's GPU. An Arena consists of two reserved address
// ranges of the same size. A Segment is a physical allocation that is mapped into both ranges at
// the same offset. Only the first mapping is registered with NCCL as a window
// (docs/design/nccl-memory.md).
//
// A UseCount counts the users of an object. A window uses its segment, and a segment uses its
// arena. A Hold uses all objects that a graph of another library needs, until the graph and its
// clones have been destroyed and all launches have completed. One lock guards the holds and the
// counts, so no object can be deferred to the end of a hold that has already ended.
//
// # Lock order
//
// No lock is held while waiting for another rank.
//
//	Scratch.mu
//	Segment.mu
//	Memory.mu
//	UseCounts.mu
package memory

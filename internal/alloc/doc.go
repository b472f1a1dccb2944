// Package alloc decides where a pool places its blocks. It is a caching allocator that only makes
// decisions. The caller maps the segments that a Core requests, records the events that the Core
// lists, and serializes calls with a lock. The segments of a Core form its arena.
//
// # Deterministic placement
//
// The placement of a block is a pure function of the Config and the history of calls. A request
// gets the stream's smallest free block that is large enough (best fit). Among blocks of the same
// size, it gets the one with the lowest (segment ordinal, offset). Placement does not depend on an
// address, map order, clock or thread. If other streams may still use a freed block, it becomes
// free at a call in the history, never because the Core polled for completion. The Address policy
// is the exception, for experiments.
//
// # Few segments
//
// A new segment is as large as all mapped memory together, and at least as large as Config.First
// and the request. Without a Capacity, at most twice the needed memory is mapped.
//
// # Streams share segments
//
// A free block serves only one stream, because queued work of that stream may still use its memory.
// A stream owns regions of segments, whose sizes are multiples of 2 MiB. Memory of a region is
// clean if it has not been allocated since the stream's work was last known to be complete (see
// Core.StreamCompleted). A stream that has no block for a request first gets clean memory of other
// streams, and otherwise a new segment. If nothing more can be mapped, Core.Seize moves free memory
// that is not clean, and the requesting stream waits for the owner on the device.
//
// # Best fit in nearly constant time
//
// TLSF (two-level segregated fit) finds a block in constant time: it rounds the request up to a
// size range and returns any block in that range. This package uses TLSF's two-level bitmap, with
// one size per bin up to 1 MiB and 64 bins between powers of two above that. To find the exact best
// fit, it keeps the free blocks of one size in a class. Above 1 MiB, the classes of a bin form a
// list ordered by size. With 80 GiB, a list has at most about 1,600 classes, and in practice a few.
//
// A branch on a block's record is expensive, because the record is often not in the cache. Common
// cases therefore branch on values that are known earlier (see last_freed.go).
//
// On a busy virtual machine, an Alloc and a Free together took 14 ns for one repeated size, and 79
// ns for random sizes among 10,000 live blocks. The bare TLSF in bench_tlsf_test.go took 26 ns and
// 74 ns.
//
// Records have no pointers and slabs only grow, so no call allocates Go memory in steady state.
package alloc

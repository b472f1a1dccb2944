// Package alloc decides where a pool places its blocks. It implements a caching allocator over the
// segments of one arena. It only makes decisions: the caller maps the segments that a Core
// requests, records the events that the Core lists, and serializes calls with a lock.
//
// # Deterministic placement
//
// The placement of a block is a pure function of the Config and the history of calls. A request
// gets the stream's smallest free block that is large enough (best fit) and, among blocks of the
// same size, the one with the lowest (segment ordinal, offset). Placement does not depend on an
// address, pointer, map order, clock or thread. A freed block that other streams may still use
// becomes free at a call that belongs to the history, never because the Core polled for
// completion. The Address policy is the exception: it exists to demonstrate and replay the
// divergence between ranks that these rules prevent.
//
// # Few segments
//
// A new segment is as large as all mapped memory together, and at least as large as Config.First
// and the request. Mapped memory thus doubles with each segment, so n bytes need about
// log2(n/First)+1 segments, or one more if requests leave remainders. Under a Capacity, the last
// segment takes what remains of the Capacity. Without a Capacity, at most twice the needed
// memory is mapped.
//
// # Streams share segments
//
// A free block serves only one stream, because queued work of that stream may still use its
// memory. A segment, however, is not bound to one stream: streams own regions of a segment,
// whose sizes are multiples of 2 MiB. A region's memory is clean if it has not been allocated
// since the stream's work was last known to be complete (see Core.Synced). A stream that needs
// more memory gets the end of the smallest clean run of memory that is large enough, and the
// pool grows only if there is none. TestGrowthIsBounded checks how much memory can be mapped as
// a result. If nothing more can be mapped, Core.Seize moves free memory that is not clean, and
// the requesting stream waits for the owner on the device.
//
// # Best fit in nearly constant time
//
// TLSF (two-level segregated fit) finds a block in constant time: it rounds the request up to a
// size range and returns any block in that range. It never compares blocks, may skip a block that
// fits exactly, and returns the most recently freed block regardless of its position. This package
// uses TLSF's two-level bitmap, with one size per bin up to 1 MiB and 64 bins between powers of two
// above that, but finds the exact best fit:
//
//   - The free blocks of one size form a class. They are stored in a bag, an unordered array of
//     keys from which a block is removed by its slot. A block that merges soon after its Free
//     is never compared with others. Only a search for the lowest block compares keys, and it
//     first turns a long bag into a heap; see bag.go.
//   - Above 1 MiB, a block that is alone in its class keeps the class while it shrinks and grows,
//     as the free tail of a segment typically does.
//   - In bins above 1 MiB, the classes form a list ordered by size. The number of sizes
//     in the bin (1/64 of the size in units) limits the length of this list, and so does the
//     number of blocks of that size that fit into memory. With 80 GiB, a list has at most about
//     1,600 classes, and in practice a few.
//
// An Alloc and a Free of random sizes together cost about 800 instructions, plus stalls at
// mispredicted branches. Branches on a block's record are the most expensive, because they are
// resolved only when the record has arrived from the second-level cache. Common cases therefore
// branch on values that are known earlier. A search derives the size of a block from its bin. A
// Free reads the states of the block's neighbors long before it merges them. Bits and short bags
// are read and written without a branch. An Alloc after a Free searches before the freed block is
// merged, so that the processor can overlap the two (see hot.go).
//
// For comparison, bench_tlsf_test.go contains a bare TLSF without streams, counters and handle
// checks. On a busy virtual machine, an Alloc and a Free together took 14 ns (TLSF: 26 ns) for one
// repeated size, and 79 ns (TLSF: 74 ns) for random sizes among 10,000 live blocks. These are the
// minimums of many short runs.
//
// Records have 32 bytes and no pointers, and slabs only grow, so no call allocates Go memory in
// steady state.
package alloc

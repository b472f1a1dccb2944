// Package alloc implements the placement core of a pool: a caching allocator of blocks over the
// segments of one arena. It only decides: the caller maps the segments that it requests, records
// the events that it names, and guards it with a lock.
//
// # Same place by construction
//
// A placement is a pure function of the Config and the history of calls. A request gets the
// smallest free block of its stream that is large enough (true best fit), and of equal blocks the
// one with the lowest (segment ordinal, offset). Placement does not depend on an address, pointer,
// map order, clock or thread. A freed block that other streams may still use becomes free at an
// event of the history, never because polling found that it is ready. The Address policy is the
// exception: it exists to show and replay what goes wrong without this.
//
// # Few segments
//
// A new segment is as large as all mapped memory together, at least Config.First, and at least the
// request. Mapped memory thus doubles: n bytes need about log2(n/First)+1 segments, plus one where
// requests leave remainders. The last segment under a Capacity gets what is left of it. Without a
// Capacity, doubling maps ahead of need, at most as much again.
//
// # Streams share segments
//
// A free block serves one stream, since work of that stream may still use its memory. But a segment
// is not bound to one stream: streams own regions of it, which are multiples of 2 MiB. Memory of a
// region that was not allocated since the stream's work was last known to be complete (see
// Core.Synced) is clean. A stream that needs more memory gets the end of the smallest clean run
// that is large enough, and the pool grows only if there is none. So mapped memory doubles only
// when every clean run is too small for a request; TestGrowthIsBounded checks the resulting bound.
// If nothing more can be mapped, Core.Seize takes free memory that is not clean, and the stream
// waits on the device.
//
// # True best fit at the price of a good fit
//
// TLSF finds a block in constant time: it rounds the request up to the next of some size ranges and
// takes any block of that range. It never compares blocks, may skip a block that fits exactly, and
// takes the most recently freed block wherever it lies. This package keeps the two levels of bits
// of TLSF, with one size per bin up to 1 MiB and 64 bins between powers of two above, but finds the
// exact best fit:
//
//   - The free blocks of one size form a class, which compares blocks as late as possible. It is a
//     bag: an unordered array of keys, from which a block is removed by its slot. A block that
//     merges soon after its Free is never compared. Only a search for the lowest block compares; it
//     first turns a long bag into a heap; see bag.go.
//   - A block that is alone in its class above 1 MiB keeps the class while it shrinks and grows, as
//     the tail of a segment does.
//   - In bins above 1 MiB the classes are a list ordered by size. It has at most as many classes as
//     the bin has sizes (1/64 of the size in units) and as blocks of that size fit into the memory:
//     for 80 GiB at most some 1,600, and in practice a few.
//
// A pair of random sizes costs some 800 instructions and the stalls where the processor has
// mispredicted a branch on a record: it notices when the record has arrived from the second-level
// cache. So common cases branch on values that are known early: a search knows the size of a block
// from its bin, not from its record; a Free reads the state of its neighbours long before they
// merge; bits and short bags are read and written without a branch; and an Alloc after a Free
// searches before that Free merges, so the processor can do both at once; see hot.go.
//
// Measured in one run with a bare TLSF without streams, counters and handle checks
// (bench_tlsf_test.go) on a busy virtual machine, alloc and free together, the minimum of many
// short runs: one repeated size 14 ns against 26; random sizes among 10,000 live blocks 79 against
// 74.
//
// Records are 32 bytes and free of pointers, in slabs that only grow; in steady state no call
// allocates.
package alloc

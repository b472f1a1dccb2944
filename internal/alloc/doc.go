// Package alloc is the placement core of a pool: a caching allocator of blocks over the
// segments of one arena. It decides and does nothing: the caller maps the segments it asks for,
// records the events it names, and guards it with a lock.
//
// # Same place by construction
//
// A placement is a pure function of the Config and the history of calls. Free blocks of a
// stream are taken by true best fit: the smallest that is large enough, and of those the one
// with the lowest (segment ordinal, offset). No address, pointer, map order, clock or thread
// takes part, and a freed block that other streams may still use comes back at an event of the
// history, never because polling found it ready. Policy Address is the exception, kept to show
// and to replay what goes wrong without this.
//
// # Few segments
//
// A new segment is as large as all mapped memory together, at least Config.First, and at least
// the request. Mapped memory thus doubles: n bytes take about
// log2(n/First)+1 segments, plus one where requests leave tails. The last segment under a
// Capacity takes what is left of it. Without a Capacity doubling maps ahead of need, at most as
// much again.
//
// # Streams share segments
//
// A free block serves one stream, since work of that stream may still use its memory. But a segment
// is not one stream's: streams own regions of it, which are multiples of 2 MiB. Memory of a region
// that was not handed out since the stream's work was last known to be over (see Synced) is clean.
// A stream that needs more gets the end of the smallest clean run that is large enough, and the
// pool grows only if there is none. So mapped memory doubles only when every clean run is too small
// for a request; see TestGrowthIsBounded for what follows. Where nothing more can be mapped, Seize
// takes free memory that is not clean, and the stream waits on the device.
//
// # True best fit at the price of a good fit
//
// TLSF finds a block in constant time by rounding the request up to the next of some size
// ranges and taking any block of that range: it never compares blocks, may pass over a block
// that fits exactly, and takes the block freed last, wherever it lies. This package keeps the
// two levels of bits of TLSF, with one size a bin up to 1 MiB and 64 bins between powers of two
// above, but finds the exact best:
//
//   - The free blocks of one size form a class, which compares blocks as late as it can: a bag
//     of keys, side by side and in no order, from which a block goes by its slot. A block that
//     merges soon after it was freed is never compared with anything. Only the question for the
//     lowest compares; a bag that is too long to be searched becomes a heap first; see bag.go.
//   - A block that is alone in its class above 1 MiB keeps the class while it shrinks and grows,
//     as the tail of a segment does.
//   - In bins above 1 MiB the classes are a list by size. It holds no more classes than the bin
//     has sizes (1/64 of the size in units) nor more than blocks of that size fit the memory,
//     so for 80 GiB some 1,600 at the very worst and in practice a few.
//
// What it costs is instructions, some 800 of them for a pair of random sizes, and the wait for
// records where the processor has guessed wrong what they hold: a wrong guess is found out when the
// record has come from the second-level cache. So what the common case branches on is known early,
// from what is at hand: a search tells the size of what it found from its bin, not from the record,
// a Free looks at its neighbours long before they merge, bits and short bags are read and written
// without a branch, and an Alloc after a Free searches before that Free merges, which lets the
// processor do both at once; see free.go.
//
// In one run with a bare TLSF without streams, counters and checks of handles, which
// bench_tlsf_test.go has, on a busy virtual machine, alloc and free together, the least of many
// short runs: a size that comes and goes 14 ns against 26; random sizes among 10,000 live blocks
// 79 against 74.
//
// Records are 32 bytes and free of pointers, in slabs that only grow; in steady state no call
// allocates.
package alloc

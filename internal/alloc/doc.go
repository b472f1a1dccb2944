// Package alloc decides where a pool places its blocks. It is a caching allocator without memory:
// the caller maps segments, records events, and serializes calls with a lock. The segments of a
// Core form its arena. docs/design/placement.md gives reasons and measurements.
//
// Placement is a pure function of the Config and the history of calls. A request gets the stream's
// smallest free block that is large enough (best fit), and of equal blocks the one with the lowest
// (segment ordinal, offset). Only the policy AddressOrder, for experiments, depends on addresses.
//
// A stream owns regions of segments, in multiples of 2 MiB. Memory of a region is clean if it has
// not been allocated since the stream's work was last known to be complete. A stream without a
// block for a request gets clean memory of other streams, or else a new segment, as large as all
// mapped memory.
//
// Free blocks are indexed by the two-level bitmap of TLSF (two-level segregated fit), which finds a
// block in constant time. Free blocks of one size form a class. A bin of the bitmap has one class
// or, above 1 MiB, a list of classes ordered by size, for an exact best fit.
//
// No call allocates Go memory in steady state: records have no pointers and slabs only grow.
package alloc

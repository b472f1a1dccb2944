// Package diff compares the histories of ranks: it finds the first request and the first place that
// differ, and explains the difference.
//
// A request is an allocation, the free that the program asked for, or a collective. Ranks must make
// the same requests in each pool and group. The n-th allocation is the same block on all ranks, so
// this number identifies the block of a free. If requests agree, places must agree, too: each
// allocation must have the same segment, by number, and the same offset.
//
// After the first difference the rest is aligned: at each difference, the explanation is chosen
// after which most of the next requests agree. One missing tensor then counts as one difference,
// not as a difference of everything after it.
//
// Two ranks that differ do not show which of them is wrong. Of more than two, the report names the
// minority.
package diff

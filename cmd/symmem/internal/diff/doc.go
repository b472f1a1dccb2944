// Package diff compares the histories of ranks. It finds the first request that differs between
// them and the first block that is placed differently, and explains the difference.
//
// A request is an allocation, a free that the program requested, or a collective. In each pool
// and group, all ranks must make the same requests. Blocks are identified by the order of their
// allocation: the n-th allocation is considered the same block on all ranks. As long as the
// requests agree, the places must agree too: each block must have the same segment number and
// the same offset on all ranks.
//
// After the first difference, diff aligns the remaining requests: at each difference, it chooses
// the explanation with which most of the following requests agree. A missing tensor therefore
// counts as one difference rather than as a difference in every later request.
//
// If there are only two ranks, it is unknown which of them is wrong. If there are more and most
// of them agree, the report names the ranks that deviate.
package diff

// Package diff compares the histories of ranks. It finds the first request that differs between
// them and the first block that is placed differently, and explains the difference.
//
// A request is an allocation, a free or a collective. In each pool and group, all ranks must make
// the same requests. The n-th allocation is considered the same block on all ranks. As long as the
// requests agree, each block must also have the same place on all ranks: the same segment number
// and the same offset.
//
// After the first difference, diff aligns the remaining requests. At each difference, it chooses
// the explanation with which most of the following requests agree. Therefore, a missing tensor
// counts as one difference, although it shifts all later requests.
//
// If more than two ranks were compared and most of them agree, the report names the ranks that
// deviate.
package diff

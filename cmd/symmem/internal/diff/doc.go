// Package diff compares the histories of ranks. It finds the first request (an allocation, a free
// or a collective) that differs between them, and the first block that is placed differently.
//
// In each pool and group, all ranks must make the same requests, and blocks must have the same
// place: the same segment number and offset. The n-th allocation is the same block on all ranks.
//
// After the first difference, diff aligns the remaining requests. At each difference, it chooses
// the explanation with which most of the following requests agree. A missing tensor therefore
// counts as one difference, although it shifts all later requests.
package diff

// Package diff compares the histories of the ranks: it finds the first request and the first place
// that differ, and explains the difference.
//
// A request is an allocation, a free that the program requested, or a collective. In each pool and
// group, the ranks must make the same requests. The n-th allocation is the same block on all ranks,
// so n identifies the block of a free. If requests agree, places must agree as well: each
// allocation must have the same segment number and the same offset.
//
// After the first difference, the remaining requests are aligned: at each difference, diff chooses
// the explanation after which most of the next requests agree. A missing tensor thus counts as one
// difference, not as a difference in every later request.
//
// If two ranks differ, it is unknown which of them is wrong. If there are more than two ranks, the
// report names the minority.
package diff

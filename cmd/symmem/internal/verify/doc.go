// Package verify implements the workload of "symmem verify". It all-reduces symmetric memory and
// checks every element on every rank.
//
// A Config is first compiled to a program, a list of steps on numbered slots (allocate, free, fill,
// reduce). It depends only on the Config, so it is the same on every rank. Run executes the
// program, and merge combines all ranks' results in one Report. With Config.Skew, ranks also make
// unrelated allocations, which differ between ranks. These never use the symmetric pool.
//
// Values are chosen to reveal mistakes. Rank r fills a buffer with value * (r + 1), and each
// all-reduce uses a different value. Data of a wrong rank or case, or data left from an earlier
// round, therefore gives an unexpected sum.
package verify

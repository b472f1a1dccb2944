// Package verify implements the workload of "symmem verify": all-reduces over symmetric memory,
// with every element checked on every rank.
//
// Before a run starts, its Config is compiled to a program, which is a list of steps on numbered
// slots (allocate, free, fill, reduce). The program depends only on the Config, so it is the same
// on every rank. Run executes the program, and merge combines all ranks' results in one Report.
// Only the unrelated allocations of Config.Skew differ between ranks; they never use the symmetric
// pool.
//
// Values are chosen to reveal mistakes: rank r fills a buffer with value * (r + 1), and each
// all-reduce uses a different value. Data of the wrong rank or case, or data left from an earlier
// round, therefore gives an unexpected sum.
package verify

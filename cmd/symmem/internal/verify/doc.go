// Package verify implements the workload of "symmem verify", which all-reduces symmetric memory and
// checks every element on every rank.
//
// A Config is first compiled to a program: a list of steps (allocate, free, fill, reduce) on
// numbered slots. The program depends only on the Config, so it is the same on every rank. Run
// executes the program and then checks fused norms, and merge combines the results of all ranks in
// one Report. With Config.Skew, each rank also makes unrelated allocations outside the symmetric
// pool, which differ between ranks.
//
// Values are chosen to reveal mistakes. Rank r fills a buffer with value * (r + 1), and each
// all-reduce uses a different value, so data from a wrong rank, another case or an earlier round
// gives an unexpected sum.
package verify

// Package verify implements the workload of "symmem verify". It all-reduces symmetric memory and
// checks every element on every rank.
//
// A Config is first compiled to a program: a list of steps (allocate, free, fill, reduce) on
// numbered slots. The program depends only on the Config, so it is the same on every rank. Run
// executes the program and then checks fused norms, and merge combines the results of all ranks
// in one Report. If Config.Skew is set, each rank also makes unrelated allocations outside the
// symmetric pool. These differ between ranks.
//
// Values are chosen to reveal mistakes: rank r fills a buffer with value * (r + 1), and value is
// different in each all-reduce. As a result, data from a wrong rank, another case or an earlier
// round lead to an unexpected sum.
package verify

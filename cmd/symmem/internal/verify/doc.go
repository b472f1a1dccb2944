// Package verify implements the workload of "symmem verify": all-reduces over symmetric memory,
// with every element checked on every rank.
//
// Before a run starts, its Config is compiled to a program: a list of steps on numbered slots
// (allocate, free, fill, reduce). It depends only on the Config, so it is the same on every rank.
// Run executes it, and merge combines the results of the ranks in one Report. Only the noise of
// Config.Skew differs between ranks, and it never uses the symmetric pool.
//
// Values are chosen to reveal mistakes: rank r fills a buffer with value * (r + 1), and each
// all-reduce uses a different value. So neither data of another rank or another case nor data left
// from an earlier round gives the expected sum.
package verify

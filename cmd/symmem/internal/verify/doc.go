// Package verify implements the workload of "symmem verify". It all-reduces symmetric memory and
// checks every element on every rank.
//
// A Config is first compiled to a program: a list of steps (allocate, free, fill, reduce) on
// numbered slots. The program is the same on every rank. Run executes the program and then checks
// norms that are fused with an all-reduce.
//
// Rank r fills a buffer with value * (r + 1), and value is different in each all-reduce. Data from
// a wrong rank, another case or an earlier round therefore lead to an unexpected sum.
package verify

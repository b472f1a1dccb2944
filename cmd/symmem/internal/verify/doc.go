// Package verify implements "symmem verify", which all-reduces symmetric memory and checks every
// element on every rank. A Config is first compiled to a program: a list of steps (allocate, free,
// fill, reduce) that is the same on every rank. Rank r fills a buffer with value * (r + 1), and
// value is different in each all-reduce, so data from a wrong rank, case or round lead to a wrong
// sum.
package verify

// Package random implements "symmem verify --for", which runs random programs on all ranks for a
// given time. It finds rare failures: wrong sums, waits that never end, memory that is not freed.
//
// A program is a sequence of rounds. The steps of a round are drawn from the seed and the number
// of the round, so they are the same on every rank, and a round can be repeated without the
// earlier ones: each makes new pools and groups, on Runtimes that are shared by all rounds. Rounds
// cycle through the check levels. Each rank also makes allocations of its own choice (skew).
//
// Every element of every result is checked (workload.Pattern).
//
// At the end of each round no memory may be in use. At the end of the run, resources are compared
// with those after the first rounds, which warm up ([Resource]).
package random

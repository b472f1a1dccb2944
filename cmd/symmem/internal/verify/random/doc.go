// Package random implements "symmem verify --for", which runs random programs on all ranks for a
// given time to find rare failures such as wrong sums, hangs and memory leaks.
//
// A program is a sequence of rounds. The steps of a round are drawn from the seed and the number of
// the round, so they are the same on every rank. All rounds share the Runtimes, but each round
// creates its own pools and groups, so it can be repeated without the earlier rounds. Rounds cycle
// through the check levels, and each rank also makes unrelated allocations (skew).
//
// Every element of every result is checked (see workload.Pattern and workload.Norm). At the end of
// each round, no memory may be in use. The first rounds are a warm-up: at the end of the run, the
// resources in use are compared with those that were in use after the warm-up (see [Resource]).
package random

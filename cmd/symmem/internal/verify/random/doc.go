// Package random implements "symmem verify --for", which runs random programs on all ranks for a
// given time. It finds rare failures such as wrong sums, endless waits and memory leaks.
//
// A program is a sequence of rounds. The steps of a round are drawn from the seed and the round's
// number, so they are the same on every rank. Each round creates new pools and groups, so it can be
// repeated without the earlier rounds. All rounds share the Runtimes. Rounds cycle through the
// check levels. Each rank also makes unrelated allocations (skew).
//
// Every element of every result is checked (see workload.Pattern).
//
// At the end of each round no memory may be in use. The first rounds are a warm-up. At the end of
// the run, the resources in use are compared with those after the warm-up (see [Resource]).
package random

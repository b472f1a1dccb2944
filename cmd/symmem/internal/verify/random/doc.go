// Package random implements "symmem verify --for", which runs random programs on all ranks for a
// given time to find rare failures such as wrong sums, hangs and memory leaks.
//
// A program is a sequence of rounds. The steps of a round depend only on the seed and the number
// of the round, so they are the same on every rank. Rounds cycle through the check levels. All
// rounds at a level share a Runtime, but each round creates new pools and groups, so that it can
// be repeated without the earlier rounds. Each rank also makes unrelated allocations (skew).
//
// Every element of every result is checked (see workload.Pattern and workload.Norm). At the end
// of each round, no memory may be in use. The first rounds are a warm-up: at the end of the run,
// the usage of resources is compared with that after the warm-up (see [Resource]).
package random

// Package random implements "symmem verify --for", which runs random programs on all ranks for a
// given time. It finds rare failures such as wrong sums, waits that never end, and memory leaks.
//
// A program is a sequence of rounds. The steps of a round are drawn from the seed and the round's
// number, so they are the same on every rank. A round can be repeated without the earlier ones,
// because each round creates new pools and groups; only Runtimes are shared by all rounds. Rounds
// cycle through the check levels. Each rank also makes unrelated allocations (skew).
//
// Every element of every result is checked (see workload.Pattern).
//
// At the end of each round no memory may be in use. At the end of the run, the resources in use are
// compared with those after the first rounds, which serve as warm-up (see [Resource]).
package random

// Package random implements "symmem verify --for", which runs random programs on all ranks for a
// given time to find rare failures: wrong sums, hangs and memory leaks.
//
// A program is a sequence of rounds. The steps of a round depend only on the seed and the number of
// the round, so they are the same on every rank, and the round can be repeated without earlier
// rounds.
//
// Every element of every result is checked. At the end of each round, no memory may be in use. At
// the end of the run, the usage of resources is compared with the usage after the first rounds (see
// [Resource]).
package random

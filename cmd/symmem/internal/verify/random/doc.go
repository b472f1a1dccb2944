// Package random is what "symmem verify --for" runs: random programs on all ranks, for as long as
// wanted. It looks for what a short test does not find: a wrong sum once in a while, a wait without
// end, memory that does not come back.
//
// A program is a sequence of rounds. A round is drawn from the seed and its number alone, so it is
// the same on every rank, and any round can be run again by itself: each begins with pools and
// groups of its own on Runtimes that last. Rounds take the check levels in turns. What a rank
// allocates in addition (skew) it draws for itself.
//
// Every element of every result is checked (workload.Pattern).
//
// At the end of each round nothing may be in use; at the end of all, what the first rounds, which
// warm up, have left is compared with what there is ([Resource]).
package random

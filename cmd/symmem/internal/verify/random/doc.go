// Package random implements "symmem verify --for", which runs random programs on all ranks to find
// rare failures: wrong sums, hangs and memory leaks. The steps of a round depend only on the seed
// and the number of the round, so they are the same on every rank, and the round can be repeated
// without earlier rounds. Every element of every result is checked, and memory must not be in use
// at the end of a round.
package random

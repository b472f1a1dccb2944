package host

import (
	"math"

	"symmem/internal/spin"
)

// tuning holds the sizes at which algorithms change, in bytes that a rank contributes. It depends
// on the number of ranks and of the processors that they have between them, so that all ranks
// choose the same. Times in the comments below were measured on 2 processors (Xeon, 2.3 GHz).
type tuning struct {
	// eager is the largest message that goes through staging although windows are there: that
	// saves the second barrier of the windowed algorithms, at the price of a copy. Where every rank
	// has a processor this pays for what fits into a line, since that is claimed ahead: 267 ns
	// instead of 317 for an all-reduce of 64 bytes on 2 ranks, but 336 instead of 313 for 128.
	eager int64
	// oneShot is the largest all-reduce in which every rank reduces everything for itself. Up to
	// there reading all inputs costs less than writing into all outputs, whose cache lines the
	// peers have.
	oneShot int64
	// polled is the largest message whose first barrier polls before it yields. Where ranks take
	// turns, who came first and gave way at once is also the first to go on, with in its caches what
	// it has used last: a fifth of the time of a reduce-scatter of 1 MiB.
	polled int64
}

// streamBytes is where results no longer fit into caches, so that stores go past them.
const streamBytes = 8 << 20

// newTuning chooses by whether every rank has its own processor. If ranks share processors, a
// barrier costs as much as copying some ten thousand bytes.
func newTuning(ranks, processors int) tuning {
	if ranks > processors {
		return tuning{eager: 4 << 10, oneShot: 32 << 10, polled: 256 << 10}
	}
	return tuning{eager: spin.LineBytes, oneShot: 32 << 10, polled: math.MaxInt64}
}

package host

import (
	"math"

	"symmem/internal/spin"
)

// tuning holds the sizes at which algorithms change, in bytes contributed by a rank. They depend
// on the number of ranks and on the number of their processors, so that all ranks choose the same
// algorithm. Times in the comments below were measured on 2 processors (Xeon, 2.3 GHz).
type tuning struct {
	// eager is the largest message that is staged although its buffers lie in windows. Staging saves
	// the second barrier of windowed algorithms and costs a copy. If every rank has a processor, it
	// is faster for messages that fit into a line, which is prefetched: 267 instead of 317 ns for an
	// all-reduce of 64 bytes on 2 ranks, but 336 instead of 313 for 128.
	eager int64
	// oneShot is the largest all-reduce in which every rank reduces the whole buffer. Up to this size
	// reading all inputs is faster than writing all outputs, whose cache lines the peers have.
	oneShot int64
	// polled is the largest message whose first barrier polls before it yields. If ranks share a
	// processor, a rank that yields at once is the first to continue, with its data still in the
	// caches: a fifth of the time of a reduce-scatter of 1 MiB.
	polled int64
}

// streamBytes is the size from which results do not fit into caches and stores bypass them.
const streamBytes = 8 << 20

// newTuning returns the sizes for ranks that share processors or not. If they do, a barrier takes
// as long as copying some ten thousand bytes.
func newTuning(ranks, processors int) tuning {
	if ranks > processors {
		return tuning{eager: 4 << 10, oneShot: 32 << 10, polled: 256 << 10}
	}
	return tuning{eager: spin.LineBytes, oneShot: 32 << 10, polled: math.MaxInt64}
}

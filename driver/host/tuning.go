package host

import (
	"math"

	"symmem/internal/spin"
)

// tuning holds the input sizes, in bytes per rank, at which the algorithm changes. All ranks choose
// the same algorithm, because the sizes depend only on the number of ranks and the number of their
// processors. The times below were measured on 2 processors (Xeon, 2.3 GHz).
type tuning struct {
	// eager is the largest input that is staged even though its buffers are in windows. Staging
	// costs a copy but saves the second barrier of windowed algorithms. If every rank has its own
	// processor, staging is faster only for inputs that fit into one prefetched cache line: an
	// all-reduce on 2 ranks takes 267 ns instead of 317 ns for 64 bytes, but 336 ns instead of 313
	// ns for 128 bytes.
	eager int64
	// oneShot is the size of the largest all-reduce in which every rank reduces the whole buffer.
	// Up to this size, reading all inputs is faster than writing all outputs, because the lines of
	// the outputs are in the peers' caches.
	oneShot int64
	// polled is the largest input for which a rank polls at the first barrier before it yields the
	// processor. For larger inputs, ranks that share a processor yield immediately. A rank that
	// yields immediately is the first to continue, while its data is still in the caches, which
	// saves a fifth of the time of a 1 MiB reduce-scatter.
	polled int64
}

// Results of at least streamBytes are written with stores that bypass the caches, because they
// would not fit into them.
const streamBytes = 8 << 20

// newTuning returns the sizes for the given number of ranks and processors. If ranks share
// processors, the sizes are larger, because a barrier then takes as long as copying about 10,000
// bytes.
func newTuning(ranks, processors int) tuning {
	if ranks > processors {
		return tuning{eager: 4 << 10, oneShot: 32 << 10, polled: 256 << 10}
	}
	return tuning{eager: spin.LineBytes, oneShot: 32 << 10, polled: math.MaxInt64}
}

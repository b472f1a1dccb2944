package host

import (
	"math"

	"symmem/internal/spin"
)

// tuning holds the input sizes, in bytes per rank, at which the algorithm changes. The sizes depend
// only on the numbers of ranks and processors, so all ranks choose the same algorithm. The times
// below were measured on 2 processors (Xeon, 2.3 GHz).
type tuning struct {
	// maxStagedInWindow is the largest input that is staged even though its buffers are in windows,
	// which saves a barrier. If every rank has its own processor, this is faster only for inputs
	// that fit into one cache line: an all-reduce on 2 ranks takes 267 ns instead of 317 ns for 64
	// bytes, but 336 ns instead of 313 ns for 128 bytes.
	maxStagedInWindow int64
	// maxReducedWhole is the largest all-reduce in which every rank reduces the whole buffer,
	// because the lines of the outputs are in the peers' caches.
	maxReducedWhole int64
	// maxPolledBytes is the largest input for which a rank polls at the first barrier. For larger
	// inputs, a rank that yields its processor continues first, with its data still in the caches.
	// This saves a fifth of the time of a 1 MiB reduce-scatter.
	maxPolledBytes int64
}

// Results of at least streamBytes bypass the caches, because they would not fit into them.
const streamBytes = 8 << 20

// newTuning returns larger sizes if ranks share processors, because a barrier then takes as long as
// copying about 10,000 bytes.
func newTuning(ranks, processors int) tuning {
	if ranks > processors {
		return tuning{
			maxStagedInWindow: 4 << 10, maxReducedWhole: 32 << 10, maxPolledBytes: 256 << 10,
		}
	}
	return tuning{
		maxStagedInWindow: spin.LineBytes, maxReducedWhole: 32 << 10, maxPolledBytes: math.MaxInt64,
	}
}

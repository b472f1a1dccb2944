package host

import (
	"math"

	"symmem/internal/spin"
)

// tuning holds the input sizes, in bytes per rank, at which the algorithm changes. They depend only
// on the numbers of ranks and processors, so all ranks choose the same algorithm. Times were
// measured on 2 processors (Xeon, 2.3 GHz).
type tuning struct {
	// maxStagedInWindow is the largest input in a window that is staged anyway, which saves a
	// barrier. If every rank has its own processor, this is faster only for inputs that fit into
	// one cache line: an all-reduce on 2 ranks takes 267 ns instead of 317 ns for 64 bytes, but 336
	// ns instead of 313 ns for 128 bytes.
	maxStagedInWindow int64
	// maxReducedWhole is the largest all-reduce in which every rank reduces the whole buffer.
	maxReducedWhole int64
	// maxPolledBytes is the largest input for which a rank polls at the first barrier. Yielding the
	// processor instead saves a fifth of the time of a 1 MiB reduce-scatter.
	maxPolledBytes int64
}

// Results of at least streamBytes would not fit into the caches, so they bypass them.
const streamBytes = 8 << 20

// If ranks share processors, a barrier takes as long as copying about 10,000 bytes.
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

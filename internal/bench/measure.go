package bench

import (
	"slices"
	"time"
)

// Plan says how long to measure.
type Plan struct {
	// Batch is how long a batch of a variant should take.
	Batch time.Duration
	// Batches is how many batches each variant gets.
	Batches int
}

// Full is the plan for figures that people quote, Quick one for continuous integration.
var (
	Full  = Plan{Batch: 5 * time.Millisecond, Batches: 21}
	Quick = Plan{Batch: time.Millisecond, Batches: 5}
)

// Summarize condenses the batches of one variant.
func Summarize(perOp []float64) Summary {
	sorted := slices.Sorted(slices.Values(perOp))
	n := len(sorted)
	if n == 0 {
		return Summary{}
	}
	return Summary{
		Median: sorted[n/2], Min: sorted[0], P10: sorted[n/10], P90: sorted[n-1-n/10], Batches: n,
	}
}

// maxOps bounds a batch of an operation that costs nothing.
const maxOps = 1 << 30

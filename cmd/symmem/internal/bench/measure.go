package bench

import (
	"runtime"
	"time"

	"symmem/bench/report"
	"symmem/internal/sys"
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

// maxOps bounds a batch of an operation that costs nothing.
const maxOps = 1 << 30

// NewReport returns an empty report of the benchmark named, of this machine.
func NewReport(name string) *report.Report {
	return report.New(name, report.Machine{
		Go: runtime.Version(), Arch: runtime.GOARCH, Processors: sys.Cores(),
	})
}

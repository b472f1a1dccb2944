package bench

import (
	"runtime"
	"time"

	"symmem/bench/report"
	"symmem/internal/sys"
)

// Plan sets the duration of measurements.
type Plan struct {
	Batch   time.Duration // target duration of a batch
	Batches int           // number of batches per variant
}

// Full is the plan for published results. Quick is the plan for continuous integration.
var (
	Full  = Plan{Batch: 5 * time.Millisecond, Batches: 21}
	Quick = Plan{Batch: time.Millisecond, Batches: 5}
)

// maxBatchCalls is the maximum number of calls in a batch, for calls that take no measurable time.
const maxBatchCalls = 1 << 30

// NewReport returns an empty report for this machine.
func NewReport(name string) *report.Report {
	return report.New(name, report.Machine{
		Go: runtime.Version(), Arch: runtime.GOARCH, Processors: sys.Cores(),
	})
}

package bench

import (
	"math"
	"runtime"
	"slices"
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

// maxBatchCalls limits the calls in a batch if they take no measurable time.
const maxBatchCalls = 1 << 30

// NewReport returns an empty report for this machine.
func NewReport(name string) *report.Report {
	return report.New(name, report.Machine{
		Go: runtime.Version(), Arch: runtime.GOARCH, Processors: sys.Cores(),
	})
}

// medianRatio returns the median of elementRatios.
func medianRatio(dividends, divisors []float64) float64 {
	return report.Summarize(elementRatios(dividends, divisors)).Median
}

// elementRatios returns dividends[i]/divisors[i] for all i. It ignores the end of a longer slice.
func elementRatios(dividends, divisors []float64) []float64 {
	all := make([]float64, min(len(dividends), len(divisors)))
	for i := range all {
		all[i] = dividends[i] / divisors[i]
	}

	return all
}

// NoiseMethod explains noisePercent in tuning tables.
const NoiseMethod = "noise is twice the standard error of the median ratio of adjacent " +
	"batches, computed from the quartiles of the logarithms"

// noisePercent returns the random error of the median of ratios. It uses logarithms, so that 2 and
// 1/2 deviate equally from 1.
func noisePercent(ratios []float64) float64 {
	if len(ratios) == 0 {
		return 0
	}

	var logs []float64
	for _, r := range ratios {
		logs = append(logs, math.Log(r))
	}

	slices.Sort(logs)
	relativeError := math.Expm1(medianError(logs))
	return 100 * relativeError
}

// medianError returns twice the standard error of the median of sorted values. It assumes a normal
// distribution.
func medianError(sorted []float64) float64 {
	const (
		deviationsBetweenQuartiles = 1.349
		medianFactor               = 1.253 // standard error of the median relative to that of the mean
	)
	n := len(sorted)
	lowerQuartile, upperQuartile := sorted[n/4], sorted[n-1-n/4]
	deviation := (upperQuartile - lowerQuartile) / deviationsBetweenQuartiles
	standardError := medianFactor * deviation / math.Sqrt(float64(n))
	return 2 * standardError
}

// roundTo rounds v to a multiple of 1/partsPerUnit.
func roundTo(v, partsPerUnit float64) float64 { return math.Round(v*partsPerUnit) / partsPerUnit }

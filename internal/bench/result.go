package bench

import (
	"fmt"
	"runtime"

	"symmem/internal/sys"
)

// Summary is the batches of one variant, in nanoseconds an operation.
type Summary struct {
	Median  float64 `json:"ns_per_op"`
	Min     float64 `json:"min_ns"`
	P10     float64 `json:"p10_ns"`
	P90     float64 `json:"p90_ns"`
	Batches int     `json:"batches"`
}

// Result is one figure of ours, against one baseline or none.
type Result struct {
	Name   string         `json:"name"`
	Params map[string]any `json:"params"`
	Summary
	AllocsPerOp float64 `json:"allocs_per_op"`
	// Baseline names what Ratio compares with; the three are nil where there is none.
	Baseline       *string  `json:"baseline"`
	BaselineMedian *float64 `json:"baseline_ns_per_op"`
	// Ratio is the baseline over ours: above 1 is faster.
	Ratio *float64 `json:"ratio"`
	// Bar is the most nanoseconds allowed, or 0.
	Bar float64 `json:"bar_ns,omitempty"`
	// Counts are other things that were counted, by name.
	Counts map[string]float64 `json:"counts,omitempty"`
}

// against sets the baseline.
func (r *Result) against(name string, s Summary) {
	ratio := 0.0
	if r.Median > 0 {
		ratio = s.Median / r.Median
	}
	r.Baseline, r.BaselineMedian, r.Ratio = &name, &s.Median, &ratio
}

// Missed reports whether the figure is over its bar.
func (r *Result) Missed() bool { return r.Bar > 0 && r.Median > r.Bar }

// Machine says where figures come from.
type Machine struct {
	Go         string `json:"go"`
	Arch       string `json:"arch"`
	Processors int    `json:"processors"`
}

// ThisMachine describes the machine.
func ThisMachine() Machine {
	return Machine{Go: runtime.Version(), Arch: runtime.GOARCH, Processors: sys.Cores()}
}

// Report is everything that one bench found.
type Report struct {
	Bench   string   `json:"bench"`
	Machine Machine  `json:"machine"`
	Results []Result `json:"results"`
	// Worst is the least ratio of a comparison of paths; nil where there is none.
	Worst *Worst `json:"worst,omitempty"`
	// RoundTrip is the round trip between two cores around the run; nil where it plays no part.
	RoundTrip *Trips `json:"round_trip,omitempty"`
	// Error is why the bench has not come to its end; the results are those from before.
	Error string `json:"error,omitempty"`
}

// Worst is the result with the least ratio.
type Worst struct {
	Ratio float64 `json:"ratio"`
	// Name says which result it is.
	Name string `json:"name"`
}

// NewReport starts the report of a bench.
func NewReport(name string) *Report {
	return &Report{Bench: name, Machine: ThisMachine(), Results: []Result{}}
}

// Missed lists the results that are over their bars.
func (r *Report) Missed() []string {
	var missed []string
	for i := range r.Results {
		if result := &r.Results[i]; result.Missed() {
			missed = append(missed, fmt.Sprintf("%s: %s, the bar is %s",
				result.label(), duration(result.Median), duration(result.Bar)))
		}
	}
	return missed
}

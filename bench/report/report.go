// Package report defines the JSON output of symmem bench.
package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Summary describes the mean times per operation in batches of operations, in nanoseconds.
type Summary struct {
	Median  float64 `json:"ns_per_op"`
	Min     float64 `json:"min_ns"`
	P10     float64 `json:"p10_ns"` // 10th percentile
	P90     float64 `json:"p90_ns"` // 90th percentile
	Batches int     `json:"batches"`
}

// Summarize returns the Summary of the mean times of batches, or the zero Summary without any.
func Summarize(times []float64) Summary {
	n := len(times)
	if n == 0 {
		return Summary{}
	}

	sorted := slices.Sorted(slices.Values(times))
	return Summary{
		Median:  sorted[n/2],
		Min:     sorted[0],
		P10:     sorted[n/10],
		P90:     sorted[n-1-n/10],
		Batches: n,
	}
}

// Result is one measurement. It can be compared to another measurement, the baseline.
type Result struct {
	Name   string         `json:"name"`   // of the operation
	Params map[string]any `json:"params"` // of the operation, such as "bytes"
	Summary
	AllocsPerOp float64 `json:"allocs_per_op"` // allocations by Go

	// These are nil without a baseline.
	Baseline       *string  `json:"baseline"` // name
	BaselineMedian *float64 `json:"baseline_ns_per_op"`
	Ratio          *float64 `json:"ratio"` // BaselineMedian divided by Median

	Limit   float64            `json:"bar_ns,omitempty"` // longest permitted median, or 0
	Figures map[string]float64 `json:"counts,omitempty"` // other numbers by name
}

// CompareTo sets the baseline and the ratio. If the median is 0, the ratio is 0, too.
func (r *Result) CompareTo(name string, baseline Summary) {
	ratio := 0.0
	if r.Median > 0 {
		ratio = baseline.Median / r.Median
	}

	r.Baseline = &name
	r.BaselineMedian = &baseline.Median
	r.Ratio = &ratio
}

// IsOverLimit reports whether the median exceeds the limit.
func (r *Result) IsOverLimit() bool { return r.Limit > 0 && r.Median > r.Limit }

// Machine describes the machine of a benchmark run.
type Machine struct {
	Go         string `json:"go"`   // version of Go
	Arch       string `json:"arch"` // GOARCH
	Processors int    `json:"processors"`
}

// Report holds all results of a benchmark run.
type Report struct {
	Bench   string   `json:"bench"` // name of the benchmark
	Machine Machine  `json:"machine"`
	Results []Result `json:"results"`
	Worst   *Worst   `json:"worst,omitempty"` // set by SetWorst

	RoundTrip *Trips `json:"round_trip,omitempty"` // nil if not measured
	Error     string `json:"error,omitempty"`      // why the run stopped early, or ""
}

// Worst is the result that is slowest compared to its baseline.
type Worst struct {
	Ratio float64 `json:"ratio"`
	Name  string  `json:"name"` // such as "all_reduce of 8 bytes in-place"
}

// Trips holds the round-trip time of a message between two processors, before and after a run.
type Trips struct {
	Before float64 `json:"before_ns"`
	After  float64 `json:"after_ns"`
	// Mode is "smt" for two threads of one core, "near" for processors that share a cache, "far" for
	// other processors, "busy" if they do other work, or "unknown" without a time. If it changed
	// during the run, it is "mixed".
	Mode string `json:"mode"`
}

// NewTrips determines the mode from times in nanoseconds.
func NewTrips(before, after float64) *Trips {
	mode := modeOf(before)
	if mode != modeOf(after) {
		mode = "mixed"
	}

	return &Trips{Before: before, After: after, Mode: mode}
}

// modeOf separates the measured ranges: 46 to 82 ns between threads of one core, 91 to 160 ns with
// a shared cache, and 230 to 540 ns without one.
func modeOf(ns float64) string {
	switch {
	case ns <= 0:
		return "unknown"
	case ns < 82:
		return "smt"
	case ns < 200:
		return "near"
	case ns < 700:
		return "far"
	default:
		return "busy"
	}
}

// New returns a report without results.
func New(name string, m Machine) *Report {
	noResults := []Result{} // not nil, which JSON would encode as null
	return &Report{Bench: name, Machine: m, Results: noResults}
}

// SetWorst sets Worst to the result with the lowest ratio, if any result has a ratio.
func (r *Report) SetWorst() {
	for i := range r.Results {
		result := &r.Results[i]
		if result.Ratio == nil {
			continue
		}

		isWorse := r.Worst == nil || *result.Ratio < r.Worst.Ratio
		if isWorse {
			name := fmt.Sprintf("%s of %v bytes %s",
				result.Name, result.Params["bytes"], result.Variant())
			r.Worst = &Worst{Ratio: *result.Ratio, Name: name}
		}
	}
}

// Variant returns "in-place" or "out-of-place".
func (r *Result) Variant() string {
	if r.Params["in_place"] == true {
		return "in-place"
	}

	return "out-of-place"
}

// DescribeOverLimit returns a message for each result whose median exceeds the limit.
func (r *Report) DescribeOverLimit() []string {
	var messages []string
	for i := range r.Results {
		result := &r.Results[i]
		if result.IsOverLimit() {
			message := fmt.Sprintf("%s: %s, the limit is %s",
				result.Label(), Duration(result.Median), Duration(result.Limit))
			messages = append(messages, message)
		}
	}

	return messages
}

// Label returns the name and the parameters of a result, as in "all_reduce bytes=8 ranks=2".
func (r *Result) Label() string {
	var b strings.Builder
	b.WriteString(r.Name)
	for _, key := range slices.Sorted(maps.Keys(r.Params)) {
		fmt.Fprintf(&b, " %s=%v", key, r.Params[key])
	}

	return b.String()
}

// Duration formats a time in nanoseconds with a unit, such as "1.25 ms".
func Duration(ns float64) string {
	switch {
	case ns >= 1e9:
		return formatDigits(ns/1e9) + " s"
	case ns >= 1e6:
		return formatDigits(ns/1e6) + " ms"
	case ns >= 1e3:
		return formatDigits(ns/1e3) + " us"
	default:
		return formatDigits(ns) + " ns"
	}
}

// formatDigits formats numbers as 1.23, 12.3, 123 and 1234.
func formatDigits(number float64) string {
	const (
		roundsTo10  = 9.995 // with two decimals
		roundsTo100 = 99.95 // with one decimal
	)
	decimals := 2
	switch {
	case number >= roundsTo100:
		decimals = 0
	case number >= roundsTo10:
		decimals = 1
	}

	return strconv.FormatFloat(number, 'f', decimals, 64)
}

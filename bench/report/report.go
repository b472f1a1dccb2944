// Package report defines the JSON output of symmem bench.
package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Summary summarizes times in nanoseconds per operation.
type Summary struct {
	Median  float64 `json:"ns_per_op"`
	Min     float64 `json:"min_ns"`
	P10     float64 `json:"p10_ns"`
	P90     float64 `json:"p90_ns"`
	Batches int     `json:"batches"`
}

// Summarize summarizes the times of batches, in nanoseconds per operation.
func Summarize(times []float64) Summary {
	sorted := slices.Sorted(slices.Values(times))
	n := len(sorted)
	if n == 0 {
		return Summary{}
	}
	return Summary{
		Median: sorted[n/2], Min: sorted[0], P10: sorted[n/10], P90: sorted[n-1-n/10], Batches: n,
	}
}

// Result holds one measurement and its baseline (a measurement to compare it with), which may be
// missing.
type Result struct {
	Name   string         `json:"name"`
	Params map[string]any `json:"params"`
	Summary
	AllocsPerOp float64 `json:"allocs_per_op"`
	// Baseline is the name of the baseline. Baseline, BaselineMedian and Ratio are nil without one.
	Baseline       *string  `json:"baseline"`
	BaselineMedian *float64 `json:"baseline_ns_per_op"`
	Ratio          *float64 `json:"ratio"` // BaselineMedian divided by Median
	// Limit is the longest permitted median in nanoseconds, or 0.
	Limit float64 `json:"bar_ns,omitempty"`
	// Figures holds other numbers by name.
	Figures map[string]float64 `json:"counts,omitempty"`
}

// CompareTo sets the baseline and computes the ratio.
func (r *Result) CompareTo(name string, s Summary) {
	ratio := 0.0
	if r.Median > 0 {
		ratio = s.Median / r.Median
	}
	r.Baseline, r.BaselineMedian, r.Ratio = &name, &s.Median, &ratio
}

// IsOverLimit reports whether the median exceeds the limit.
func (r *Result) IsOverLimit() bool { return r.Limit > 0 && r.Median > r.Limit }

// Machine describes the machine on which a report was made.
type Machine struct {
	Go         string `json:"go"`
	Arch       string `json:"arch"`
	Processors int    `json:"processors"`
}

// Report holds all results of a benchmark run.
type Report struct {
	Bench   string   `json:"bench"`
	Machine Machine  `json:"machine"`
	Results []Result `json:"results"`
	// Worst has the lowest ratio in a comparison of paths, or is nil.
	Worst *Worst `json:"worst,omitempty"`
	// RoundTrip is nil if it was not measured.
	RoundTrip *Trips `json:"round_trip,omitempty"`
	// Error is the reason why the run stopped early, or "".
	Error string `json:"error,omitempty"`
}

// Worst names the result with the lowest ratio.
type Worst struct {
	Ratio float64 `json:"ratio"`
	Name  string  `json:"name"`
}

// New returns a report without results.
func New(name string, m Machine) *Report {
	return &Report{Bench: name, Machine: m, Results: []Result{}}
}

// SetWorst sets Worst to the result with the lowest ratio.
func (r *Report) SetWorst() {
	for i := range r.Results {
		result := &r.Results[i]
		if result.Ratio != nil && (r.Worst == nil || *result.Ratio < r.Worst.Ratio) {
			r.Worst = &Worst{Ratio: *result.Ratio, Name: fmt.Sprintf("%s of %v bytes %s",
				result.Name, result.Params["bytes"], result.Variant())}
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
		if result := &r.Results[i]; result.IsOverLimit() {
			messages = append(messages, fmt.Sprintf("%s: %s, the limit is %s",
				result.Label(), Duration(result.Median), Duration(result.Limit)))
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

// Duration formats a time in nanoseconds with about three digits and a unit.
func Duration(ns float64) string {
	for _, unit := range []struct {
		ns   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}} {
		if ns >= unit.ns {
			return formatDigits(ns/unit.ns) + " " + unit.name
		}
	}
	return formatDigits(ns) + " ns"
}

func formatDigits(v float64) string {
	switch {
	case v >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

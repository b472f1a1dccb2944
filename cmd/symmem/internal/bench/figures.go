package bench

import (
	"math"

	"symmem"
	"symmem/bench/report"
	"symmem/driver"
)

// A result describes one call, such as an all-reduce of 1 MiB. A path is a way to run the call:
// plain, window, direct or two-level. The path choice requests one of them, or is PathAuto, with
// which symmem chooses the path. A runner measures the call with one choice. It times several
// batches (series of calls), in nanoseconds per call. The runners alternate after each batch.
//
// Suppose that CollectiveOptions.Compare is set, and that three runners have measured these times:
//
//	runner for    batch 0    batch 1    batch 2    median
//	PathAuto           10         20         40        20
//	PathPlain          12         24         48        24
//	PathWindow          9         22         36        22
//
// The time of the result is the median with PathAuto: 20. Its baseline, the time to compare it
// with, is the median of the fastest path: 22. But the ratio 22/20 would be misleading, because the
// machine became slower from batch to batch. Therefore, the ratio of the result compares batches
// that ran soon after each other: it is the median of 9/10, 22/20 and 36/40, which is 0.9. The
// result also has a limit for the time of PathAuto: a little more than the time of the plain path.
//
// Without Compare, all runners have the same choice. They can differ in the check level, such as
// CheckOff and CheckEvery. The result has the times of the last level. The baseline is the first.

// callTimes combines the measurements of a call's runners. The times are in nanoseconds per call.
//
// Several runners can have the same choice and level, but different buffers. A slice contains the
// times of the first of these runners, then those of the second, and so on. With Compare, times at
// the same index were measured on the same buffers, soon after each other.
type callTimes struct {
	byLevel    [][]float64                     // by index in Checks; with Compare, only of PathAuto
	byPath     map[symmem.PathChoice][]float64 // with Compare, on each path; otherwise empty
	takenPath  string                          // path of the calls in byLevel
	wrongCount int64                           // number of wrong elements in all outputs
}

// combineTimes combines the measurements of the runners of a call.
func (o *CollectiveOptions) combineTimes(runners []*runner) *callTimes {
	times := &callTimes{
		byLevel: make([][]float64, len(o.Checks)),
		byPath:  map[symmem.PathChoice][]float64{},
	}
	for _, r := range runners {
		times.wrongCount += r.wrong
		isForComparison := o.Compare && r.choice != symmem.PathAuto
		if isForComparison {
			times.byPath[r.choice] = append(times.byPath[r.choice], r.nsPerCall...)
			continue
		}

		level := r.world.level
		times.byLevel[level] = append(times.byLevel[level], r.nsPerCall...)
		times.takenPath = r.path // the same for all runners that get here
	}

	return times
}

// newResult returns the result of a call.
//
// If the call cannot take the requested path, the runners have measured PathAuto instead, and
// refusal is the reason. Otherwise, refusal is "".
func (o *CollectiveOptions) newResult(
	row *Row, inPlace bool, refusal string, runners []*runner,
) *report.Result {
	times := o.combineTimes(runners)
	const firstLevel = 0
	lastLevel := len(o.Checks) - 1
	result := &report.Result{
		Name:    row.Operation.Name,
		Params:  o.resultParams(row, inPlace, refusal, times.takenPath),
		Summary: report.Summarize(times.byLevel[lastLevel]),
	}
	algorithmGBps, busGBps := row.bandwidths(result.Median) // as in nccl-tests
	result.Figures = map[string]float64{
		"algbw_gbps": algorithmGBps, "busbw_gbps": busGBps, "wrong": float64(times.wrongCount),
	}
	hasSeveralLevels := lastLevel > firstLevel
	if hasSeveralLevels {
		name := "check " + o.Checks[firstLevel].String()
		result.CompareTo(name, report.Summarize(times.byLevel[firstLevel]))
	}

	hasComparedPaths := len(times.byPath) > 0
	if hasComparedPaths { // Compare requires a single check level
		autoTimes := times.byLevel[firstLevel]
		setBaseline(result, autoTimes, times.byPath)
		if o.isPathChosenForSpeed(row.Operation) {
			setLimit(result, autoTimes, times.byPath[symmem.PathPlain])
		}
	}

	return result
}

// resultParams returns the parameters of a result. Their names are those in the JSON report.
func (o *CollectiveOptions) resultParams(
	row *Row, inPlace bool, refusal, takenPath string,
) map[string]any {
	lastCheck := o.Checks[len(o.Checks)-1]
	params := map[string]any{
		"bytes": row.Bytes, "count": row.Count, "type": TypeName(o.DataType), "ranks": row.Ranks,
		"path": o.Path.String(), "took": takenPath, "check": lastCheck.String(),
		"in_place": inPlace,
	}
	if o.OutsideWindows {
		params["buffers"] = "any" // as in the flag --buffers any
	}

	if row.Operation.kind.Reduces() {
		params["redop"] = o.ReduceOp.String()
	}

	if refusal != "" {
		params["refused"] = refusal
	}

	if o.GraphCalls > 0 {
		params["graph_ops"] = o.GraphCalls
	}

	return params
}

// isPathChosenForSpeed reports whether PathAuto tries to choose the fastest path. For the minimum
// and maximum of floats, it prefers the direct path, which keeps NaNs, even if it is slower.
func (o *CollectiveOptions) isPathChosenForSpeed(op *Operation) bool {
	call := driver.Call{Operation: op.kind, DataType: o.DataType, ReduceOp: o.ReduceOp}
	return !call.IsFloatMinOrMax()
}

// setBaseline compares a result of PathAuto with the fastest path. It also adds the median time of
// each path to the result.
func setBaseline(
	r *report.Result, autoTimes []float64, timesByPath map[symmem.PathChoice][]float64,
) {
	fastest := symmem.PathPlain // so far
	fastestMedian := math.Inf(1)
	paths := []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect, symmem.PathTwoLevel,
	}
	for _, path := range paths {
		times, isMeasured := timesByPath[path]
		if !isMeasured { // the call cannot take this path
			continue
		}

		median := report.Summarize(times).Median
		r.Figures[path.String()+"_ns"] = median
		if median < fastestMedian {
			fastest = path
			fastestMedian = median
		}
	}

	r.Params["better"] = fastest.String()
	r.CompareTo("the best path", report.Summarize(timesByPath[fastest]))
	ratio := medianRatio(timesByPath[fastest], autoTimes)
	r.Ratio = &ratio // replaces the ratio of the medians, which CompareTo has set
}

// maxRatioToPlain is the permitted time of PathAuto as a multiple of the plain path's time.
// Smaller differences can be random.
const maxRatioToPlain = 1.02

// setLimit sets the longest permitted time of a result of PathAuto. It sets no limit if PathAuto
// took the plain path, because a difference is then random.
func setLimit(r *report.Result, autoTimes, plainTimes []float64) {
	tookPlain := r.Params["took"] == symmem.PathPlain.String()
	if tookPlain {
		return
	}

	// As for the ratio, compare batches that ran soon after each other. In the example at the
	// beginning of this file, plainTime is 20 * 1.2.
	plainTime := r.Median * medianRatio(plainTimes, autoTimes)
	r.Limit = maxRatioToPlain * plainTime
}

// medianRatio returns the median of the ratios of times at the same index.
func medianRatio(dividends, divisors []float64) float64 {
	return report.Summarize(ratios(dividends, divisors)).Median
}

// ratios divides each dividend by the divisor at the same index. It ignores the last values of the
// longer slice.
func ratios(dividends, divisors []float64) []float64 {
	all := make([]float64, min(len(dividends), len(divisors)))
	for i := range all {
		all[i] = dividends[i] / divisors[i]
	}

	return all
}

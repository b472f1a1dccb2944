package bench

import (
	"math"

	"symmem"
	"symmem/bench/report"
	"symmem/driver"
)

// A runner times batches of a call, such as an all-reduce of 1 MiB, on one path. PathAuto lets
// symmem choose the path. With CollectiveOptions.Compare, the runners of all paths take turns, one
// batch at a time. Here, the machine became slower from batch to batch (ns per call):
//
//	runner for    batch 0    batch 1    batch 2    median
//	PathAuto           10         20         40        20
//	PathPlain          12         24         48        24
//	PathWindow          9         22         36        22
//
// The ratio of the medians of PathWindow and PathAuto, 22/20, would include this drift. The result
// therefore has the median of the ratios of adjacent batches, 9/10, 22/20 and 36/40, which is 0.9.

// callTimes holds the measurements of a call in nanoseconds per call. With Compare, times at the
// same index of two slices were measured on the same buffers in adjacent batches.
type callTimes struct {
	byLevel    [][]float64                     // by index in Checks; with Compare, only of PathAuto
	byPath     map[symmem.PathChoice][]float64 // with Compare, of all other paths
	takenPath  string                          // path that the calls in byLevel took
	wrongCount int64                           // number of wrong elements in all outputs
}

func (o *CollectiveOptions) combineTimes(runners []*runner) *callTimes {
	times := &callTimes{
		byLevel: make([][]float64, len(o.Checks)),
		byPath:  map[symmem.PathChoice][]float64{},
	}
	for _, r := range runners {
		times.wrongCount += r.wrong
		if o.Compare && r.choice != symmem.PathAuto {
			times.byPath[r.choice] = append(times.byPath[r.choice], r.nsPerCall...)
			continue
		}

		level := r.world.level
		times.byLevel[level] = append(times.byLevel[level], r.nsPerCall...)
		times.takenPath = r.path // the same for all these runners
	}

	return times
}

// newResult returns the result of a call at the last check level. The baseline is the fastest path
// with Compare, and the first check level without it. If refusal is not empty, the runners measured
// PathAuto, and refusal states why the call cannot take the requested path.
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
	algorithmGBps, busGBps := row.bandwidths(result.Median)
	result.Figures = map[string]float64{
		"algbw_gbps": algorithmGBps, "busbw_gbps": busGBps, "wrong": float64(times.wrongCount),
	}
	if lastLevel != firstLevel {
		name := "check " + o.Checks[firstLevel].String()
		result.CompareTo(name, report.Summarize(times.byLevel[firstLevel]))
	}

	if len(times.byPath) > 0 { // with Compare, which requires a single check level
		autoTimes := times.byLevel[firstLevel]
		setBaseline(result, autoTimes, times.byPath)
		if o.isPathChosenForSpeed(row.Operation) {
			setLimit(result, autoTimes, times.byPath[symmem.PathPlain])
		}
	}

	return result
}

// resultParams returns the parameters of a result, by name in the JSON report.
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
// and maximum of floats, it prefers the direct path, which keeps NaNs.
func (o *CollectiveOptions) isPathChosenForSpeed(op *Operation) bool {
	call := driver.Call{Operation: op.kind, DataType: o.DataType, ReduceOp: o.ReduceOp}
	return !call.IsFloatMinOrMax()
}

// fixedPaths lists all paths except PathAuto.
var fixedPaths = []symmem.PathChoice{
	symmem.PathPlain, symmem.PathWindow, symmem.PathDirect, symmem.PathTwoLevel,
}

// setBaseline compares a result of PathAuto with the fastest path, and adds the medians of all
// paths.
func setBaseline(
	result *report.Result, autoTimes []float64, timesByPath map[symmem.PathChoice][]float64,
) {
	fastest := symmem.PathPlain
	fastestMedian := math.Inf(1)
	for _, path := range fixedPaths {
		times, isMeasured := timesByPath[path]
		if !isMeasured { // the call cannot take this path
			continue
		}

		median := report.Summarize(times).Median
		result.Figures[path.String()+"_ns"] = median
		if median < fastestMedian {
			fastest = path
			fastestMedian = median
		}
	}

	result.Params["better"] = fastest.String()
	result.CompareTo("the best path", report.Summarize(timesByPath[fastest]))
	ratio := medianRatio(timesByPath[fastest], autoTimes)
	result.Ratio = &ratio // replaces the ratio of medians that CompareTo has set
}

// setLimit limits a result of PathAuto to the time of the plain path, except for noise.
func setLimit(result *report.Result, autoTimes, plainTimes []float64) {
	tookPlain := result.Params["took"] == symmem.PathPlain.String()
	if tookPlain { // the calls are the same, so any difference is noise
		return
	}

	const noiseFactor = 1.02
	plainTime := result.Median * medianRatio(plainTimes, autoTimes) // excludes drift
	result.Limit = noiseFactor * plainTime
}

// medianRatio returns the median of the ratios of elements at the same index.
func medianRatio(dividends, divisors []float64) float64 {
	return report.Summarize(ratios(dividends, divisors)).Median
}

// ratios returns the ratio at each index that both slices have.
func ratios(dividends, divisors []float64) []float64 {
	all := make([]float64, min(len(dividends), len(divisors)))
	for i := range all {
		all[i] = dividends[i] / divisors[i]
	}

	return all
}

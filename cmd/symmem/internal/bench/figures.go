package bench

import (
	"symmem"
	"symmem/bench/report"
	"symmem/driver"
)

// newResult combines the measurements of the runners. Each runner measured the same call, at one
// check level and with one path choice. refusal is the reason why the call does not take the
// requested path, or "".
func (o *CollectiveOptions) newResult(
	row *Row, inPlace bool, refusal string, runners []*runner,
) *report.Result {
	// All times are in nanoseconds per call.
	timesByLevel := make([][]float64, len(o.Checks)) // by index in o.Checks
	timesByPath := map[symmem.PathChoice][]float64{} // with the paths to compare PathAuto with
	takenPath := ""
	wrongCount := int64(0)
	for _, r := range runners {
		wrongCount += r.wrong
		isForComparison := o.Compare && r.choice != symmem.PathAuto
		if isForComparison {
			timesByPath[r.choice] = append(timesByPath[r.choice], r.nsPerCall...)
			continue
		}

		timesByLevel[r.world.level] = append(timesByLevel[r.world.level], r.nsPerCall...)
		takenPath = r.path // the same for all runners that get here
	}

	lastLevel := len(o.Checks) - 1
	result := &report.Result{
		Name: row.Operation.Name,
		Params: map[string]any{
			"bytes": row.Bytes, "count": row.Count, "type": TypeName(o.DataType), "ranks": row.Ranks,
			"path": o.Path.String(), "took": takenPath, "check": o.Checks[lastLevel].String(),
			"in_place": inPlace,
		},
		Summary: report.Summarize(timesByLevel[lastLevel]),
	}
	algorithmGBps, busGBps := row.bandwidths(result.Median)
	result.Figures = map[string]float64{
		"algbw_gbps": algorithmGBps, "busbw_gbps": busGBps, "wrong": float64(wrongCount),
	}
	if o.OutsideWindows {
		result.Params["buffers"] = "any" // as in --buffers
	}

	if row.Operation.kind.Reduces() {
		result.Params["redop"] = o.ReduceOp.String()
	}

	if refusal != "" {
		result.Params["refused"] = refusal
	}

	if o.GraphCalls > 0 {
		result.Params["graph_ops"] = o.GraphCalls
	}

	if lastLevel > 0 { // the levels are compared
		result.CompareTo("check "+o.Checks[0].String(), report.Summarize(timesByLevel[0]))
	}

	if len(timesByPath) > 0 { // the paths are compared, at a single level
		setBaseline(result, timesByLevel[0], timesByPath)
		call := driver.Call{
			Operation: row.Operation.kind, DataType: o.DataType, ReduceOp: o.ReduceOp,
		}
		if call.IsFloatMinOrMax() {
			result.Limit = 0 // no limit, because the path of these calls is not chosen for speed
		}
	}

	return result
}

// setBaseline makes the fastest path the baseline of r, and adds the median time of each path. r
// already has the times with PathAuto. Unless PathAuto took the plain path, setBaseline also sets
// r.Limit, above which the time with PathAuto is too long.
func setBaseline(
	r *report.Result, autoTimes []float64, timesByPath map[symmem.PathChoice][]float64,
) {
	fastest := symmem.PathPlain // so far; PathPlain is the first path, and always has times
	paths := []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect, symmem.PathTwoLevel,
	}
	for _, path := range paths {
		nsPerCall, ok := timesByPath[path]
		if !ok { // the call cannot take this path
			continue
		}

		median := report.Summarize(nsPerCall).Median
		r.Figures[path.String()+"_ns"] = median
		if median < r.Figures[fastest.String()+"_ns"] {
			fastest = path
		}
	}

	r.Params["better"] = fastest.String()
	r.CompareTo("the best path", report.Summarize(timesByPath[fastest]))
	// CompareTo divides the medians of all batches. But the machine's speed can change by more than
	// paths differ. Therefore, compare only batches that were measured one after the other.
	ratio := medianRatio(timesByPath[fastest], autoTimes)
	r.Ratio = &ratio
	if r.Params["took"] != symmem.PathPlain.String() {
		plainTime := r.Median * medianRatio(timesByPath[symmem.PathPlain], autoTimes)
		r.Limit = maxRatioToPlain * plainTime
	}
}

// medianRatio returns the median of the ratios of times at the same index.
func medianRatio(dividends, divisors []float64) float64 {
	return report.Summarize(ratios(dividends, divisors)).Median
}

// maxRatioToPlain is the permitted time with PathAuto as a multiple of the time of the plain path.
const maxRatioToPlain = 1.02

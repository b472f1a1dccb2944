package bench

import (
	"math"

	"symmem"
	"symmem/bench/report"
	"symmem/driver"
)

// callTimes holds the times of the batches of a call, in nanoseconds per call.
type callTimes struct {
	byLevel    [][]float64                     // by index in Checks, except for the times in byPath
	byPath     map[symmem.PathChoice][]float64 // of the paths that Compare adds to PathAuto
	takenPath  string                          // of the calls in byLevel
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
		times.takenPath = r.path
	}

	return times
}

// newResult returns the result of a call at the last check level. Its baseline is the first check
// level or, with Compare, the fastest path. A non-empty refusal is the reason why PathAuto was
// measured instead of the requested path.
func (o *CollectiveOptions) newResult(
	row *Row, inPlace bool, refusal string, runners []*runner,
) *report.Result {
	times := o.combineTimes(runners)
	last := len(o.Checks) - 1
	lastTimes := times.byLevel[last]
	result := &report.Result{
		Name:    row.Operation.Name,
		Params:  o.resultParams(row, inPlace, refusal, times.takenPath),
		Summary: report.Summarize(lastTimes),
	}
	algorithmGBps, busGBps := row.bandwidths(result.Median)
	result.Figures = map[string]float64{
		"algbw_gbps": algorithmGBps, "busbw_gbps": busGBps, "wrong": float64(times.wrongCount),
	}
	if len(o.Checks) > 1 {
		name := "check " + o.Checks[0].String()
		result.CompareTo(name, report.Summarize(times.byLevel[0]))
	}

	if len(times.byPath) > 0 {
		setBaseline(result, lastTimes, times.byPath)
		if o.isPathChosenForSpeed(row.Operation) {
			setLimit(result, lastTimes, times.byPath[symmem.PathPlain])
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
		params["buffers"] = "any"
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

// isPathChosenForSpeed reports whether PathAuto chooses the fastest path. For the minimum and
// maximum of floats, it prefers the direct path, which keeps NaNs.
func (o *CollectiveOptions) isPathChosenForSpeed(op *Operation) bool {
	call := driver.Call{Operation: op.kind, DataType: o.DataType, ReduceOp: o.ReduceOp}
	return !call.IsFloatMinOrMax()
}

// fixedPaths lists all paths except PathAuto.
var fixedPaths = []symmem.PathChoice{
	symmem.PathPlain, symmem.PathWindow, symmem.PathDirect, symmem.PathTwoLevel,
}

// setBaseline compares a result of PathAuto with the fastest of the other paths, and adds the
// median of each path. In this example, the machine became slower (times in ns):
//
//	path          batch 0    batch 1    batch 2    median
//	PathAuto           10         20         40        20
//	PathWindow          9         22         36        22
//
// The ratio of the medians, 22/20, is wrong because of this drift. The result therefore has the
// median of the ratios 9/10, 22/20 and 36/40, which is 0.9.
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
	result.Ratio = &ratio // instead of the ratio of medians from CompareTo
}

// setLimit sets the limit for a result of PathAuto: the time of the plain path plus noise.
func setLimit(result *report.Result, autoTimes, plainTimes []float64) {
	tookPlain := result.Params["took"] == symmem.PathPlain.String()
	if tookPlain { // any difference is noise
		return
	}

	const noiseFactor = 1.02
	plainTime := result.Median * medianRatio(plainTimes, autoTimes) // without drift
	result.Limit = noiseFactor * plainTime
}

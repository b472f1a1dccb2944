package bench

import (
	"symmem"
	"symmem/bench/report"
	"symmem/driver"
)

// newResult combines the measurements of the runners, all of which measured the same call. refusal
// is the reason why the call does not take the requested path, or "".
func (o *CollectiveOptions) newResult(
	row *Row, inPlace bool, refusal string, runners []*runner,
) *report.Result {
	// Times are in nanoseconds per call.
	timesByLevel := make([][]float64, len(o.Checks)) // with o.Path at each of o.Checks
	timesByPath := map[symmem.PathChoice][]float64{} // with each path to compare PathAuto with
	takenPath := ""
	wrongCount := int64(0)
	for _, r := range runners {
		wrongCount += r.wrong
		if !o.Compare || r.choice == symmem.PathAuto {
			timesByLevel[r.world.level] = append(timesByLevel[r.world.level], r.nsPerCall...)
			takenPath = r.path
		} else {
			timesByPath[r.choice] = append(timesByPath[r.choice], r.nsPerCall...)
		}
	}
	last := len(o.Checks) - 1
	result := &report.Result{
		Name: row.Operation.Name,
		Params: map[string]any{
			"bytes": row.Bytes, "count": row.Count, "type": TypeName(o.DataType), "ranks": row.Ranks,
			"path": o.Path.String(), "took": takenPath, "check": o.Checks[last].String(),
			"in_place": inPlace,
		},
		Summary: report.Summarize(timesByLevel[last]),
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
	if last > 0 {
		result.CompareTo("check "+o.Checks[0].String(), report.Summarize(timesByLevel[0]))
	}
	if len(timesByPath) > 0 {
		call := driver.Call{
			Operation: row.Operation.kind, DataType: o.DataType, ReduceOp: o.ReduceOp,
		}
		setBaseline(result, timesByLevel[0], timesByPath)
		if call.IsFloatMinOrMax() {
			result.Limit = 0 // no limit, because the path of these calls is not chosen for speed
		}
	}
	return result
}

// setBaseline makes the fastest path the baseline of r, and adds the median time of each path. r
// holds the times with PathAuto. The machine's speed can change by more than paths differ, so the
// ratio is the median of the ratios of batches that were measured one after the other. Unless
// PathAuto took the plain path, setBaseline also sets a limit of the time.
func setBaseline(
	r *report.Result, autoTimes []float64, timesByPath map[symmem.PathChoice][]float64,
) {
	fastest := symmem.PathPlain
	for _, path := range []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect, symmem.PathTwoLevel,
	} {
		nsPerCall, ok := timesByPath[path]
		if !ok {
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
	r.Ratio = new(report.Summarize(ratios(timesByPath[fastest], autoTimes)).Median)
	if r.Params["took"] != symmem.PathPlain.String() {
		plainRatio := report.Summarize(ratios(timesByPath[symmem.PathPlain], autoTimes)).Median
		r.Limit = maxRatioToPlain * r.Median * plainRatio
	}
}

// maxRatioToPlain is the permitted time with PathAuto as a multiple of the time of the plain path.
const maxRatioToPlain = 1.02

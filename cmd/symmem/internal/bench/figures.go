package bench

import (
	"symmem"
	"symmem/bench/report"
	"symmem/driver"
)

// result combines the batches of the runners that measure the same call. With several check
// levels, it compares the last level with the first.
func (o *CollectiveOptions) result(
	row *Row, inPlace bool, refusal string, runners []*runner,
) *report.Result {
	perLevel, perPath := make([][]float64, len(o.Checks)), map[symmem.PathChoice][]float64{}
	path, wrong := "", int64(0)
	for _, r := range runners {
		wrong += r.wrong
		if !o.Compare || r.choice == symmem.PathAuto {
			perLevel[r.world.level] = append(perLevel[r.world.level], r.nsPerCall...)
			path = r.path
		} else {
			perPath[r.choice] = append(perPath[r.choice], r.nsPerCall...)
		}
	}
	last := len(o.Checks) - 1
	result := &report.Result{
		Name: row.Operation.Name,
		Params: map[string]any{
			"bytes": row.Bytes, "count": row.Count, "type": TypeName(o.DataType), "ranks": row.Ranks,
			"path": o.Path.String(), "took": path, "check": o.Checks[last].String(),
			"in_place": inPlace,
		},
		Summary: report.Summarize(perLevel[last]),
	}
	algorithm, bus := row.bandwidths(result.Median)
	result.Figures = map[string]float64{
		"algbw_gbps": algorithm, "busbw_gbps": bus, "wrong": float64(wrong),
	}
	if o.OutsideWindows {
		result.Params["buffers"] = "any"
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
		result.CompareTo("check "+o.Checks[0].String(), report.Summarize(perLevel[0]))
	}
	if len(perPath) > 0 {
		call := driver.Call{
			Operation: row.Operation.kind, DataType: o.DataType, ReduceOp: o.ReduceOp,
		}
		if compare(result, perLevel[0], perPath); call.ComparesFloats() {
			result.Limit = 0 // the path of such a call is not chosen for speed
		}
	}
	return result
}

// compare makes the fastest path the baseline of a result. auto holds the times with PathAuto. The
// ratio of the result is the median of the ratios of adjacent batches.
func compare(r *report.Result, auto []float64, perPath map[symmem.PathChoice][]float64) {
	best := symmem.PathPlain
	for _, path := range []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect, symmem.PathTwoLevel,
	} {
		nsPerCall, ok := perPath[path]
		if !ok {
			continue
		}
		median := report.Summarize(nsPerCall).Median
		if r.Figures[path.String()+"_ns"] = median; median < r.Figures[best.String()+"_ns"] {
			best = path
		}
	}
	r.Params["better"] = best.String()
	r.CompareTo("the best path", report.Summarize(perPath[best]))
	r.Ratio = new(report.Summarize(ratios(perPath[best], auto)).Median)
	if plain := perPath[symmem.PathPlain]; r.Params["took"] != symmem.PathPlain.String() {
		r.Limit = maxRatioToPlain * r.Median * report.Summarize(ratios(plain, auto)).Median
	}
}

// maxRatioToPlain is the largest permitted time of the path that the tuning table chooses, as a
// multiple of the time of the plain path.
const maxRatioToPlain = 1.02

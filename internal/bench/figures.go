package bench

import (
	"fmt"

	"symmem"
)

// Results are the row's halves as figures of a report.
func (r *Row) Results(o *Collective) []Result {
	var results []Result
	for _, h := range []*Half{r.OutOfPlace, r.InPlaceHalf} {
		if h != nil {
			results = append(results, r.result(o, h))
		}
	}
	return results
}

func (r *Row) result(o *Collective, h *Half) Result {
	last := len(h.Checked) - 1
	algorithm, bus := r.bandwidths(h.Checked[last].Median)
	result := Result{
		Name: r.Operation.Name,
		Params: map[string]any{
			"bytes": r.Bytes, "count": r.Count, "type": TypeName(o.DataType), "ranks": r.Ranks,
			"path": o.Path.String(), "check": o.Checks[last].String(), "in_place": h == r.InPlaceHalf,
		},
		Summary: h.Checked[last],
		Counts: map[string]float64{
			"algbw_gbps": algorithm, "busbw_gbps": bus, "wrong": float64(h.Wrong),
		},
	}
	if o.Apart {
		result.Params["buffers"] = "any"
	}
	if r.Operation.reduces {
		result.Params["redop"] = o.ReduceOp.String()
	}
	result.Params["took"] = h.Took
	if h.Refused != "" {
		result.Params["refused"] = h.Refused
	}
	if o.GraphOps > 0 {
		result.Params["graph_ops"] = o.GraphOps
	}
	if last > 0 {
		result.against("check "+o.Checks[0].String(), h.Checked[0])
	}
	for path, forced := range h.Forced {
		result.Counts[path.String()+"_ns"] = forced.Median
	}
	if h.Better != symmem.PathDefault {
		result.Params["better"] = h.Better.String()
		result.against("the best path", h.Forced[h.Better])
		result.Ratio = &h.Ratio
	}
	return result
}

// half names the half of a row that a result is of.
func (r *Result) half() string {
	if r.Params["in_place"] == true {
		return "in-place"
	}
	return "out-of-place"
}

// NoteWorst finds the least ratio among the results that have one.
func (r *Report) NoteWorst() {
	for i := range r.Results {
		result := &r.Results[i]
		if result.Ratio != nil && (r.Worst == nil || *result.Ratio < r.Worst.Ratio) {
			r.Worst = &Worst{Ratio: *result.Ratio, Name: fmt.Sprintf("%s of %v bytes %s",
				result.Name, result.Params["bytes"], result.half())}
		}
	}
}

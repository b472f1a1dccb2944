package bench

import (
	"bytes"
	"fmt"
	"io"

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
	if h.Refused != "" && !o.Compare {
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

// PathTable writes what the choice of paths wins and costs: the times on the path that was chosen
// and on each, as comments behind the columns of nccl-tests.
func (r *Report) PathTable(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %14s  %12s  %12s  %10s  %10s  %10s  %10s  %7s  %6s\n",
		"operation", "size", "", "auto", "plain", "window", "direct", "took", "ratio")
	for i := range r.Results {
		result := &r.Results[i]
		if result.Baseline == nil {
			continue
		}
		forced := func(path symmem.PathChoice) string {
			if ns, has := result.Counts[path.String()+"_ns"]; has {
				return duration(ns)
			}
			return "none"
		}
		fmt.Fprintf(&b, "# %14s  %12v  %12s  %10s  %10s  %10s  %10s  %7v  %6s\n",
			result.Name, result.Params["bytes"], result.half(), duration(result.Median),
			forced(symmem.PathPlain), forced(symmem.PathWindow), forced(symmem.PathDirect),
			result.Params["took"], ratio(*result.Ratio))
	}
	if r.Worst != nil {
		fmt.Fprintf(&b, "# worst ratio: %.3f, %s\n", r.Worst.Ratio, r.Worst.Name)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// CheckTable writes what checking costs: the times of a run at two check levels, as comments behind
// the columns of nccl-tests.
func (r *Report) CheckTable(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %14s  %12s  %12s  %12s  %12s  %6s\n",
		"operation", "size", "", "unchecked", "checked", "ratio")
	for i := range r.Results {
		result := &r.Results[i]
		if result.Baseline == nil {
			continue
		}
		fmt.Fprintf(&b, "# %14s  %12v  %12s  %12s  %12s  %6s\n", result.Name,
			result.Params["bytes"], result.half(), duration(*result.BaselineMedian),
			duration(result.Median), ratio(*result.Ratio))
	}
	_, err := w.Write(b.Bytes())
	return err
}

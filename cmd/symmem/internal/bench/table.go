package bench

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"symmem/bench/report"
)

// The tables compare results with a baseline, such as the same call without checks:
//
//	#   operation     size                unchecked  checked  ratio
//	#  all_reduce  1048576  out-of-place    20.0 us  20.4 us  0.98x
//
// The ratio is the baseline's time divided by the result's time. In nccl-tests, # begins a comment.

// writeTable writes rows as aligned columns. Each line begins with prefix.
func writeTable(w io.Writer, prefix string, rows [][]string) error {
	var aligned bytes.Buffer
	const minWidth, tabWidth, padding = 0, 0, 2
	out := tabwriter.NewWriter(&aligned, minWidth, tabWidth, padding, ' ', tabwriter.AlignRight)
	for _, cells := range rows {
		fmt.Fprintf(out, "%s\t\n", strings.Join(cells, "\t"))
	}

	if err := out.Flush(); err != nil {
		return err
	}

	for line := range bytes.Lines(aligned.Bytes()) {
		if _, err := fmt.Fprintf(w, "%s%s", prefix, line); err != nil {
			return err
		}
	}

	return nil
}

// WritePathTable writes a table that compares PathAuto with each path. If a call cannot take a
// path, the cell is "none".
func WritePathTable(w io.Writer, r *report.Report) error {
	rows := [][]string{
		{
			"operation", "size", "", "auto", "plain", "window", "direct", "two-level", "took",
			"ratio",
		},
	}
	for i := range r.Results {
		result := &r.Results[i]
		if wasCompared(result) {
			rows = append(rows, pathRow(result))
		}
	}

	if err := writeTable(w, "#", rows); err != nil {
		return err
	}

	if r.Worst == nil { // no result was compared
		return nil
	}

	_, err := fmt.Fprintf(w, "# worst ratio: %.3f, %s\n", r.Worst.Ratio, r.Worst.Name)
	return err
}

// wasCompared reports whether the fields Baseline, BaselineMedian and Ratio are set.
func wasCompared(r *report.Result) bool { return r.Baseline != nil }

func pathRow(r *report.Result) []string {
	row := append(callCells(r), report.Duration(r.Median))
	for _, path := range fixedPaths {
		cell := "none"
		if ns, ok := r.Figures[path.String()+"_ns"]; ok {
			cell = report.Duration(ns)
		}

		row = append(row, cell)
	}

	takenPath := fmt.Sprint(r.Params["took"])
	return append(row, takenPath, formatRatio(*r.Ratio))
}

// WriteCheckTable writes a table that compares calls without and with checks.
func WriteCheckTable(w io.Writer, r *report.Report) error {
	rows := [][]string{{"operation", "size", "", "unchecked", "checked", "ratio"}}
	for i := range r.Results {
		result := &r.Results[i]
		if !wasCompared(result) {
			continue
		}

		row := append(callCells(result), report.Duration(*result.BaselineMedian),
			report.Duration(result.Median), formatRatio(*result.Ratio))
		rows = append(rows, row)
	}

	return writeTable(w, "#", rows)
}

// callCells returns the first cells of a row: "all_reduce", "1048576", "out-of-place".
func callCells(r *report.Result) []string {
	return []string{r.Name, fmt.Sprint(r.Params["bytes"]), r.Variant()}
}

func formatRatio(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) + "x" }

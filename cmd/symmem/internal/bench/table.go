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

// writeTable writes rows as aligned columns. Each line begins with prefix.
func writeTable(w io.Writer, prefix string, rows [][]string) error {
	var aligned bytes.Buffer
	const minWidth, tabWidth, padding = 0, 0, 2
	out := tabwriter.NewWriter(&aligned, minWidth, tabWidth, padding, ' ', tabwriter.AlignRight)
	for _, cells := range rows {
		fmt.Fprintf(out, "%s\t\n", strings.Join(cells, "\t")) // a tab ends each cell
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

// WritePathTable writes a table with the times of PathAuto and of the other paths. The time is
// "none" if the call cannot take a path. The ratio is the time of the fastest path divided by that
// of PathAuto.
func WritePathTable(w io.Writer, r *report.Report) error {
	header := []string{"operation", "size", "", "auto"}
	for _, path := range fixedPaths {
		header = append(header, path.String())
	}

	header = append(header, "took", "ratio")
	rows := [][]string{header}
	for i := range r.Results {
		result := &r.Results[i]
		if wasCompared(result) {
			rows = append(rows, pathRow(result))
		}
	}

	if err := writeTable(w, "#", rows); err != nil {
		return err
	}

	if r.Worst == nil {
		return nil
	}

	_, err := fmt.Fprintf(w, "# worst ratio: %.3f, %s\n", r.Worst.Ratio, r.Worst.Name)
	return err
}

// wasCompared reports whether CompareTo has set Baseline, BaselineMedian and Ratio.
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

// WriteCheckTable writes a table that compares calls without and with checks. The ratio is the time
// without checks divided by that with checks:
//
//	#   operation     size                unchecked  checked  ratio
//	#  all_reduce  1048576  out-of-place    20.0 us  20.4 us  0.98x
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

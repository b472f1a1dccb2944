package bench

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"symmem"
	"symmem/bench/report"
)

// writeTable writes rows of cells as aligned columns. Each line begins with prefix.
func writeTable(w io.Writer, prefix string, rows [][]string) error {
	var aligned bytes.Buffer
	out := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', tabwriter.AlignRight)
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

// WritePathTable writes a table that compares PathAuto with each path, as comments of nccl-tests.
// It has a row for each result with a baseline, and shows "none" for a path that the call cannot
// take.
func WritePathTable(w io.Writer, r *report.Report) error {
	rows := [][]string{
		{
			"operation", "size", "", "auto", "plain", "window", "direct", "two-level", "took",
			"ratio",
		},
	}
	for i := range r.Results {
		result := &r.Results[i]
		if result.Baseline == nil {
			continue
		}
		row := append(callCells(result), report.Duration(result.Median))
		for _, path := range []symmem.PathChoice{
			symmem.PathPlain, symmem.PathWindow, symmem.PathDirect, symmem.PathTwoLevel,
		} {
			cell := "none"
			if ns, ok := result.Figures[path.String()+"_ns"]; ok {
				cell = report.Duration(ns)
			}
			row = append(row, cell)
		}
		rows = append(rows, append(row, fmt.Sprint(result.Params["took"]), formatRatio(*result.Ratio)))
	}
	if err := writeTable(w, "#", rows); err != nil || r.Worst == nil {
		return err
	}
	_, err := fmt.Fprintf(w, "# worst ratio: %.3f, %s\n", r.Worst.Ratio, r.Worst.Name)
	return err
}

// WriteCheckTable writes a table that compares two check levels, as comments of nccl-tests. It
// has a row for each result with a baseline.
func WriteCheckTable(w io.Writer, r *report.Report) error {
	rows := [][]string{{"operation", "size", "", "unchecked", "checked", "ratio"}}
	for i := range r.Results {
		if result := &r.Results[i]; result.Baseline != nil {
			rows = append(rows, append(callCells(result), report.Duration(*result.BaselineMedian),
				report.Duration(result.Median), formatRatio(*result.Ratio)))
		}
	}
	return writeTable(w, "#", rows)
}

func callCells(r *report.Result) []string {
	return []string{r.Name, fmt.Sprint(r.Params["bytes"]), r.Variant()}
}

func formatRatio(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) + "x" }

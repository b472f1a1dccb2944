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

// PathTable writes a table that compares PathAuto with each path. All lines begin with #, as
// comments in nccl-tests do.
func PathTable(w io.Writer, r *report.Report) error {
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
		rows = append(rows, append(row, fmt.Sprint(result.Params["took"]), ratio(*result.Ratio)))
	}
	if err := writeTable(w, "#", rows); err != nil || r.Worst == nil {
		return err
	}
	_, err := fmt.Fprintf(w, "# worst ratio: %.3f, %s\n", r.Worst.Ratio, r.Worst.Name)
	return err
}

// CheckTable writes a table that compares the times at two check levels, like PathTable.
func CheckTable(w io.Writer, r *report.Report) error {
	rows := [][]string{{"operation", "size", "", "unchecked", "checked", "ratio"}}
	for i := range r.Results {
		if result := &r.Results[i]; result.Baseline != nil {
			rows = append(rows, append(callCells(result), report.Duration(*result.BaselineMedian),
				report.Duration(result.Median), ratio(*result.Ratio)))
		}
	}
	return writeTable(w, "#", rows)
}

func callCells(r *report.Result) []string {
	return []string{r.Name, fmt.Sprint(r.Params["bytes"]), r.Variant()}
}

func ratio(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) + "x" }

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

// WritePathTable writes a table that compares PathAuto with each path. Its lines begin with #, as
// comments in the format of nccl-tests do. It has a row for each result with a baseline, and shows
// "none" for a path that the call cannot take.
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
			continue // was not compared
		}

		row := append(callCells(result), report.Duration(result.Median))
		paths := []symmem.PathChoice{
			symmem.PathPlain, symmem.PathWindow, symmem.PathDirect, symmem.PathTwoLevel,
		}
		for _, path := range paths {
			cell := "none"
			if ns, ok := result.Figures[path.String()+"_ns"]; ok {
				cell = report.Duration(ns)
			}

			row = append(row, cell)
		}

		takenPath := fmt.Sprint(result.Params["took"])
		row = append(row, takenPath, formatRatio(*result.Ratio)) // set if Baseline is set
		rows = append(rows, row)
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

// WriteCheckTable writes a table that compares two check levels. Its lines begin with #, as
// comments in the format of nccl-tests do. It has a row for each result with a baseline.
func WriteCheckTable(w io.Writer, r *report.Report) error {
	rows := [][]string{{"operation", "size", "", "unchecked", "checked", "ratio"}}
	for i := range r.Results {
		result := &r.Results[i]
		if result.Baseline == nil {
			continue // was not compared
		}

		rows = append(rows, append(callCells(result), // these pointers are set if Baseline is set
			report.Duration(*result.BaselineMedian), report.Duration(result.Median),
			formatRatio(*result.Ratio)))
	}

	return writeTable(w, "#", rows)
}

// callCells returns the cells that identify the call of a result: the operation, the size, and the
// variant, such as "in place".
func callCells(r *report.Result) []string {
	return []string{r.Name, fmt.Sprint(r.Params["bytes"]), r.Variant()}
}

func formatRatio(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) + "x" }

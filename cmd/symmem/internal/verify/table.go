package verify

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"symmem/driver"
	"symmem/internal/ranklist"
)

// The text of a report on 2 ranks begins like this. The first line of the table combines two churn
// cases (1.churn8 and 1.churn16), which all-reduce randomly allocated buffers:
//
//	2 ranks on the host backend; check every, placement address, path window
//
//	TestCase   Size     Value  Sym  Exp   MaxDiff     MeanDiff    Result
//	1.churn8   1,100    *      yes  *     0.00000000  0.00000000  PASS x 2
//	1.churn24  100      1000   yes  3000  9.00000000  1.00000000  FAIL
//	1.1        262,144  1      yes  3     0.00000000  0.00000000  PASS
//
//	Total: 4 | Passed: 3 | Failed: 1

// WriteText writes a table of cases, totals, and the error that ended the run early, if any.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	r.writeHeader(&b)
	if err := r.writeTable(&b); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}

	r.writeTotals(&b)
	if r.Divergence != nil {
		b.WriteByte('\n')
		d := diagram{r.Divergence}
		d.write(&b)
	}

	if r.Fault != "" {
		fmt.Fprintf(&b, "\nThe run ended early: %s\n", r.Fault)
	}

	_, err := w.Write(b.Bytes())
	return err
}

func (r *Report) writeHeader(b *bytes.Buffer) {
	fmt.Fprintf(b, "%s on the %s backend; check %s, placement %s, path %s\n",
		ranklist.Plural(r.Ranks, "rank"), r.Backend, r.Check, r.Placement, r.RequestedPath)
	if r.Deterministic != "" {
		fmt.Fprintf(b, "Results must match the formula %s bit for bit.\n", r.Deterministic)
	}

	if r.PathReason != "" {
		fmt.Fprintf(b, "The path taken was %s: %s.\n", r.TakenPaths, r.PathReason)
	}

	b.WriteByte('\n')
}

func (r *Report) writeTotals(b *bytes.Buffer) {
	fmt.Fprintf(b, "\nTotal: %d | Passed: %d | Failed: %d", len(r.Cases), r.Passed, r.Failed)
	if r.NotRun > 0 {
		fmt.Fprintf(b, " | Not run: %d", r.NotRun)
	}

	b.WriteByte('\n')
	r.Norms.writeText(b)
	if r.Failed > 0 && r.Divergence == nil {
		b.WriteString("\nSums were wrong without an error. " +
			"Run with --check every to find where ranks differ.\n")
	}
}

// writeText writes the totals of the norms (collectives fused with an RMSNorm), if any.
func (r *NormReport) writeText(b *bytes.Buffer) {
	checkedCount := r.Passed + r.Failed
	switch {
	case checkedCount > 0:
		fmt.Fprintf(b, "Fused norms | Passed: %d | Failed: %d\n", r.Passed, r.Failed)
		if r.Refused != "" {
			fmt.Fprintf(b, "Some norms were not checked: %s\n", r.Refused)
		}
	case r.Refused != "":
		fmt.Fprintf(b, "Norms were not checked: %s\n", r.Refused)
	}
}

func (r *Report) writeTable(b *bytes.Buffer) error {
	const (
		minWidth  = 0
		tabWidth  = 0
		columnGap = 2
		noFlags   = 0
	)
	t := tabwriter.NewWriter(b, minWidth, tabWidth, columnGap, ' ', noFlags)
	r.writeCells(t, "TestCase", "Group", "Size", "Value", "Sym", "Exp", "MaxDiff", "MeanDiff",
		"Result")
	remaining := r.Cases
	for len(remaining) > 0 {
		n := countCasesOnLine(remaining)
		r.writeLine(t, remaining[:n])
		remaining = remaining[n:]
	}

	return t.Flush()
}

// countCasesOnLine returns how many cases share the line of cases[0]. Consecutive churn cases with
// the same result share a line, unless they failed.
func countCasesOnLine(cases []Case) int {
	first := &cases[0]
	if !first.Churn || first.Result == ResultFailed {
		return 1
	}

	n := 1
	for n < len(cases) && cases[n].Churn && cases[n].Result == first.Result {
		n++
	}

	return n
}

// writeLine writes one line of the table. All cases have the same result.
func (r *Report) writeLine(w io.Writer, cases []Case) {
	first := &cases[0]
	group := driver.Spans(first.Ranks)
	value := fmt.Sprint(first.Value)
	expected := fmt.Sprint(first.Expected)
	result := first.Result
	if len(cases) > 1 {
		group, value, expected = "*", "*", "*" // differ between the cases
		result = fmt.Sprintf("%s x %d", result, len(cases))
	}

	total := combineCases(cases)
	symmetric := "yes"
	if !total.Symmetric {
		symmetric = "no"
	}

	maxDiff := fmt.Sprintf("%.8f", total.MaxDiff)
	meanDiff := fmt.Sprintf("%.8f", total.MeanDiff)
	isNotRun := first.Result == ResultDiverged || first.Result == ResultNotRun
	if isNotRun {
		symmetric, maxDiff, meanDiff = "-", "-", "-"
	}

	r.writeCells(w, first.Name, group, thousands(total.Size), value, symmetric, expected, maxDiff,
		meanDiff, result)
}

// writeCells writes a line of the table, without the group if there is only one.
func (r *Report) writeCells(w io.Writer, name, group string, others ...string) {
	columns := []string{name}
	if r.Groups > 1 {
		columns = append(columns, group)
	}

	columns = append(columns, others...)
	fmt.Fprintln(w, strings.Join(columns, "\t"))
}

// combineCases returns a Case with only the total Size, the largest MaxDiff and MeanDiff, and
// Symmetric if all cases are.
func combineCases(cases []Case) Case {
	total := Case{Symmetric: true}
	for i := range cases {
		c := &cases[i]
		total.Size += c.Size
		total.Symmetric = total.Symmetric && c.Symmetric
		total.MaxDiff = max(total.MaxDiff, c.MaxDiff)
		total.MeanDiff = max(total.MeanDiff, c.MeanDiff)
	}

	return total
}

// thousands formats 262144 as 262,144.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	const groupSize = 3
	for position := len(digits) - groupSize; position > 0; position -= groupSize {
		digits = digits[:position] + "," + digits[position:]
	}

	return digits
}

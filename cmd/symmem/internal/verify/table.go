package verify

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"symmem/driver"
	"symmem/internal/ranklist"
)

// WriteText writes the table of cases, its totals, and any error that ended the run early.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s on the %s backend; check %s, placement %s, path %s\n",
		ranklist.Plural(r.Ranks, "rank"), r.Backend, r.Check, r.Placement,
		r.RequestedPath)
	if r.Deterministic != "" {
		fmt.Fprintf(&b, "Results must match the formula %s bit for bit.\n", r.Deterministic)
	}

	if r.PathReason != "" {
		fmt.Fprintf(&b, "The path taken was %s: %s.\n", r.TakenPaths, r.PathReason)
	}

	b.WriteByte('\n')
	if err := r.writeTable(&b); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}

	fmt.Fprintf(&b, "\nTotal: %d | Passed: %d | Failed: %d", len(r.Cases), r.Passed, r.Failed)
	if r.NotRun > 0 {
		fmt.Fprintf(&b, " | Not run: %d", r.NotRun)
	}

	b.WriteByte('\n')
	r.Norms.writeText(&b)
	if r.Failed > 0 && r.Divergence == nil {
		b.WriteString("\nSums were wrong without an error. " +
			"Run with --check every to find where ranks differ.\n")
	}

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

// writeText writes the totals of the norms, which are collectives that are fused with an RMSNorm.
// It writes nothing if the run had no norms.
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

// writeTable writes a table of the cases. Its column Group exists only if the run has subgroups.
func (r *Report) writeTable(b *bytes.Buffer) error {
	const columnGap = 2
	t := tabwriter.NewWriter(b, 0, 0, columnGap, ' ', 0) // the other arguments are defaults
	groupTitle := ""
	if r.Groups > 1 {
		groupTitle = "Group\t"
	}

	fmt.Fprintf(t, "TestCase\t%sSize\tValue\tSym\tExp\tMaxDiff\tMeanDiff\tResult\n", groupTitle)
	remaining := r.Cases
	for len(remaining) > 0 {
		n := countCasesOnLine(remaining)
		r.writeLine(t, remaining[:n])
		remaining = remaining[n:]
	}

	return t.Flush()
}

// countCasesOnLine returns the number of cases on the line of the table that begins with the first
// of the cases. Consecutive checks of random allocations share a line if they have the same result.
// If this result is a failure, each check has a line, so that all failures are visible.
func countCasesOnLine(cases []Case) int {
	first := &cases[0]
	if !first.Churn || first.Result == Failed {
		return 1
	}

	n := 1
	for n < len(cases) && cases[n].Churn && cases[n].Result == first.Result {
		n++
	}

	return n
}

// writeLine writes one line of the table. If cases has several elements, the line shows their
// total size and their largest differences. The columns for group and values then contain *.
func (r *Report) writeLine(w io.Writer, cases []Case) {
	first := &cases[0]
	group := driver.Spans(first.Ranks)
	value := fmt.Sprint(first.Value)
	expected := fmt.Sprint(first.Expected)
	result := first.Result
	if len(cases) > 1 {
		group, value, expected = "*", "*", "*"
		result = fmt.Sprintf("%s x %d", result, len(cases))
	}

	size := int64(0)
	maxDiff, meanDiff := 0.0, 0.0
	symmetric := "yes"
	for i := range cases {
		size += cases[i].Size
		if !cases[i].Symmetric {
			symmetric = "no"
		}

		maxDiff = max(maxDiff, cases[i].MaxDiff)
		meanDiff = max(meanDiff, cases[i].MeanDiff)
	}

	maxText := fmt.Sprintf("%.8f", maxDiff)
	meanText := fmt.Sprintf("%.8f", meanDiff)
	hasRun := first.Result == Passed || first.Result == Failed // as all cases on the line
	if !hasRun {
		symmetric, maxText, meanText = "-", "-", "-" // unknown
	}

	groupColumn := ""
	if r.Groups > 1 {
		groupColumn = group + "\t"
	}

	fmt.Fprintf(w, "%s\t%s%s\t%s\t%s\t%s\t%s\t%s\t%s\n", first.Name, groupColumn,
		thousands(size), value, symmetric, expected, maxText, meanText, result)
}

// thousands formats 262144 as 262,144.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for position := len(digits) - 3; position > 0; position -= 3 {
		digits = digits[:position] + "," + digits[position:]
	}

	return digits
}

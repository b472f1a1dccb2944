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
		diagram{r.Divergence}.write(&b)
	}
	if r.Fault != "" {
		fmt.Fprintf(&b, "\nThe run ended early: %s\n", r.Fault)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// writeText writes the totals of the norms. It writes nothing if the run had no norms.
func (r *NormReport) writeText(b *bytes.Buffer) {
	switch {
	case r.Passed+r.Failed > 0:
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
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	group := ""
	if r.Groups > 1 {
		group = "Group\t"
	}
	fmt.Fprintf(t, "TestCase\t%sSize\tValue\tSym\tExp\tMaxDiff\tMeanDiff\tResult\n", group)
	for i := 0; i < len(r.Cases); {
		n := r.countCasesOnLine(i)
		r.writeLine(t, r.Cases[i:i+n])
		i += n
	}
	return t.Flush()
}

// countCasesOnLine returns the number of cases on the line of the table that begins with case i.
// Consecutive checks of random allocations with the same result share a line, unless they failed.
func (r *Report) countCasesOnLine(i int) int {
	first := &r.Cases[i]
	if !first.Churn || first.Result == Failed {
		return 1
	}
	n := 1
	for i+n < len(r.Cases) && r.Cases[i+n].Churn && r.Cases[i+n].Result == first.Result {
		n++
	}
	return n
}

// writeLine writes one line of the table. If cases has several elements, the line shows their
// total size, their largest differences, and * in the other columns.
func (r *Report) writeLine(w io.Writer, cases []Case) {
	first := &cases[0]
	group, result := driver.Spans(first.Ranks), first.Result
	value, expected := fmt.Sprint(first.Value), fmt.Sprint(first.Expected)
	if n := len(cases); n > 1 {
		group, value, expected = "*", "*", "*"
		result = fmt.Sprintf("%s x %d", result, n)
	}
	size, maxDiff, meanDiff := int64(0), 0.0, 0.0
	symmetric := "yes"
	for i := range cases {
		size += cases[i].Size
		if !cases[i].Symmetric {
			symmetric = "no"
		}
		maxDiff = max(maxDiff, cases[i].MaxDiff)
		meanDiff = max(meanDiff, cases[i].MeanDiff)
	}
	maxText, meanText := fmt.Sprintf("%.8f", maxDiff), fmt.Sprintf("%.8f", meanDiff)
	if first.Result != Passed && first.Result != Failed {
		symmetric, maxText, meanText = "-", "-", "-" // unknown, because the case did not run
	}
	if r.Groups > 1 {
		group += "\t"
	} else {
		group = ""
	}
	fmt.Fprintf(w, "%s\t%s%s\t%s\t%s\t%s\t%s\t%s\t%s\n", first.Name, group, thousands(size),
		value, symmetric, expected, maxText, meanText, result)
}

// thousands formats 262144 as 262,144.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for position := len(digits) - 3; position > 0; position -= 3 {
		digits = digits[:position] + "," + digits[position:]
	}
	return digits
}

package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"symmem/bench/report"
	"symmem/internal/tuning"
)

// TuneResult.WriteText shows the time of each path and the chosen one:
//
//	operation  size                 buffers    plain   window  direct  noise  chosen     wins
//	AllReduce  1KiB  out of place  symmetric  13.0 us  7.40 us       -  1.5 %  window  +75.7 %
//
// The window path wins by 75.7 %, because the plain path takes 13.0/7.4 = 1.757 times as long. The
// column direct also shows the two-level path.

// WriteText writes a table of the measured sizes, and then each rule and each skipped operation.
func (t *TuneResult) WriteText(w io.Writer) error {
	rows := [][]string{{
		"operation", "size", "", "buffers", "plain", "window", "direct", "noise", "chosen",
		"wins",
	}}
	for i := range t.Rules {
		rows = append(rows, measuredRows(&t.Rules[i])...)
	}

	var text strings.Builder
	const noPrefix = ""
	tableErr := writeTable(&text, noPrefix, rows)
	for i := range t.Rules {
		fmt.Fprintln(&text, &t.Rules[i])
	}

	for _, reason := range t.Skipped {
		fmt.Fprintln(&text, reason)
	}

	_, writeErr := io.WriteString(w, text.String())
	return errors.Join(tableErr, writeErr)
}

// measuredRows returns a row for each measured size of a rule.
func measuredRows(rule *tuning.Rule) [][]string {
	memory := cmp.Or(rule.Memory, tuning.Symmetric)
	var rows [][]string
	for _, step := range rule.Steps { // a step chooses a path for a range of sizes
		for _, p := range step.Measured {
			winPercent := 100 * (speedup(step.Path, p) - 1)
			rows = append(rows, []string{
				rule.Operation, p.Bytes.String(), placementText(p.InPlace), string(memory),
				formatMicroseconds(p.PlainUS), formatMicroseconds(p.WindowUS),
				formatMicroseconds(directOrTwoLevelUS(p)),
				fmt.Sprintf("%.1f %%", p.NoisePercent), string(step.Path),
				fmt.Sprintf("%+.1f %%", winPercent),
			})
		}
	}

	return rows
}

// directOrTwoLevelUS returns the time of the direct or two-level path. At most one was measured,
// and the other time is 0.
func directOrTwoLevelUS(p tuning.Point) float64 { return p.DirectUS + p.TwoLevelUS }

func formatMicroseconds(us float64) string {
	if us == 0 { // not measured
		return "-"
	}

	const nsPerMicrosecond = 1e3
	return report.Duration(us * nsPerMicrosecond)
}

// speedup returns the time of the rejected path divided by the time of the chosen path. A rule
// chooses between the paths of one pair: plain and window, direct and NotDirect, or two-level and
// NotDirect. NotDirect is the faster of plain and window.
func speedup(chosen tuning.Path, p tuning.Point) float64 {
	switch chosen {
	case tuning.Window:
		return p.PlainUS / p.WindowUS
	case tuning.Direct:
		return p.NotDirectUS() / p.DirectUS
	case tuning.TwoLevel:
		return p.NotDirectUS() / p.TwoLevelUS
	case tuning.NotDirect:
		return directOrTwoLevelUS(p) / p.NotDirectUS()
	default: // tuning.Plain
		return p.WindowUS / p.PlainUS
	}
}

// Document returns the fields of the JSON output. file is the name of the file for the new table,
// and written reports whether this file has been written.
func (t *TuneResult) Document(file string, written bool) (map[string]any, error) {
	table, err := t.Table.Encode()
	if err != nil {
		return nil, err
	}

	skipped := append([]string{}, t.Skipped...) // [] in JSON instead of null
	return map[string]any{
		"file": file, "written": written, "table": json.RawMessage(table), "skipped": skipped,
	}, nil
}

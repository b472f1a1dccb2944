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

// WriteText writes a line for each measured size and a line for each rule. If the two-level path
// was measured instead of the direct path, the column "direct" shows its time. The column "wins"
// shows by how much the chosen path is faster than the alternative.
func (t *TuneResult) WriteText(w io.Writer) error {
	rows := [][]string{{
		"operation", "size", "", "buffers", "plain", "window", "direct", "noise", "chosen",
		"wins",
	}}
	for _, r := range t.Rules {
		for _, s := range r.Steps {
			for _, p := range s.Measured {
				rows = append(rows, []string{
					r.Operation, p.Bytes.String(), placementText(p.InPlace),
					string(cmp.Or(r.Memory, tuning.Symmetric)),
					formatMicroseconds(p.PlainUS), formatMicroseconds(p.WindowUS),
					formatMicroseconds(p.DirectUS + p.TwoLevelUS), // at most one of them is measured
					fmt.Sprintf("%.1f %%", p.NoisePercent), string(s.Path),
					fmt.Sprintf("%+.1f %%", 100*(speedup(s.Path, p)-1)),
				})
			}
		}
	}
	var text strings.Builder
	err := writeTable(&text, "", rows)
	for i := range t.Rules {
		fmt.Fprintln(&text, &t.Rules[i])
	}
	for _, skipped := range t.Skipped {
		fmt.Fprintln(&text, skipped)
	}
	_, writeErr := io.WriteString(w, text.String())
	return errors.Join(err, writeErr)
}

// formatMicroseconds formats a time in microseconds. 0 means that the time was not measured.
func formatMicroseconds(us float64) string {
	if us == 0 {
		return "-"
	}
	return report.Duration(us * 1e3)
}

// speedup returns the time of the alternative to the chosen path divided by the time of the chosen
// path.
func speedup(chosen tuning.Path, p tuning.Point) float64 {
	switch chosen {
	case tuning.Window:
		return p.PlainUS / p.WindowUS
	case tuning.Direct:
		return p.NotDirectUS() / p.DirectUS
	case tuning.TwoLevel:
		return p.NotDirectUS() / p.TwoLevelUS
	case tuning.NotDirect:
		return (p.DirectUS + p.TwoLevelUS) / p.NotDirectUS() // only one of the two is measured
	default: // the plain path
		return p.WindowUS / p.PlainUS
	}
}

// Document returns the fields of the JSON output. file is the path of the table, and written
// states whether it has been written.
func (t *TuneResult) Document(file string, written bool) (map[string]any, error) {
	table, err := t.Table.Encode()
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"file": file, "written": written, "table": json.RawMessage(table),
		"skipped": append([]string{}, t.Skipped...),
	}, nil
}

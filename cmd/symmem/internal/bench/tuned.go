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

// Text writes a line for each measured size, with the speed-up of the chosen path over the other
// one, and a line for each rule.
func (t *Tuned) Text(w io.Writer) error {
	rows := [][]string{{
		"operation", "size", "", "buffers", "plain", "window", "direct", "noise", "chosen",
		"wins",
	}}
	for _, r := range t.Rules {
		for _, s := range r.Steps {
			for _, p := range s.Measured {
				rows = append(rows, []string{
					r.Operation, p.Bytes.String(), half(p.InPlace),
					string(cmp.Or(r.Memory, tuning.Symmetric)),
					measured(p.PlainUS), measured(p.WindowUS), measured(p.DirectUS),
					fmt.Sprintf("%.1f %%", p.NoisePercent), string(s.Path),
					fmt.Sprintf("%+.1f %%", 100*(wins(s.Path, p)-1)),
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
	_, failed := io.WriteString(w, text.String())
	return errors.Join(err, failed)
}

// measured formats a time in microseconds; 0 means not measured.
func measured(us float64) string {
	if us == 0 {
		return "-"
	}
	return report.Duration(us * 1e3)
}

// wins returns the ratio of the time on the other path to that on the chosen one.
func wins(chosen tuning.Path, p tuning.Point) float64 {
	switch chosen {
	case tuning.Window:
		return p.PlainUS / p.WindowUS
	case tuning.Direct:
		return p.OtherUS() / p.DirectUS
	case tuning.Other:
		return p.DirectUS / p.OtherUS()
	default:
		return p.WindowUS / p.PlainUS
	}
}

// Document returns the fields of the JSON output: the table, its file, whether that was written,
// and the skipped operations.
func (t *Tuned) Document(file string, written bool) (map[string]any, error) {
	table, err := t.Table.Encode()
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"file": file, "written": written, "table": json.RawMessage(table),
		"skipped": append([]string{}, t.Skipped...),
	}, nil
}

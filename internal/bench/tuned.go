package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"symmem/internal/tuning"
)

// Text writes what was measured and chosen for people: a line for each size and half, with how much
// faster the chosen path is than the other one, and a line for each rule.
func (t *Tuned) Text(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "operation\tsize\t\tplain\twindow\tnoise\tchosen\twins\t\n")
	for _, r := range t.Rules {
		for _, s := range r.Steps {
			for _, p := range s.Measured {
				fmt.Fprintf(out, "%s\t%v\t%v\t%s\t%s\t%.1f %%\t%s\t%+.1f %%\t\n", r.Operation,
					p.Bytes, r.HalfOf(p), duration(p.PlainUS*1e3), duration(p.WindowUS*1e3),
					p.NoisePercent, s.Path, 100*(wins(s.Path, p)-1))
			}
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("writing the times: %w", err)
	}
	for i := range t.Rules {
		if _, err := fmt.Fprintf(w, "%v\n", &t.Rules[i]); err != nil {
			return fmt.Errorf("writing the rules: %w", err)
		}
	}
	for _, skipped := range t.Skipped {
		if _, err := fmt.Fprintf(w, "%s\n", skipped); err != nil {
			return fmt.Errorf("writing what was skipped: %w", err)
		}
	}
	return nil
}

// wins is the time on the other path over that on the chosen one.
func wins(chosen tuning.Path, p tuning.Point) float64 {
	if chosen == tuning.Window {
		return p.PlainUS / p.WindowUS
	}
	return p.WindowUS / p.PlainUS
}

// JSON writes one object: the table, its file, whether that was written, and what was skipped.
func (t *Tuned) JSON(w io.Writer, file string, written bool) error {
	table, err := t.Table.Encode()
	if err != nil {
		return err
	}
	skipped := t.Skipped
	if skipped == nil {
		skipped = []string{}
	}
	encoded, err := json.Marshal(map[string]any{
		"file": file, "written": written, "skipped": skipped, "table": json.RawMessage(table),
	})
	if err != nil {
		return fmt.Errorf("encoding what was found: %w", err)
	}
	if _, err := fmt.Fprintf(w, "%s\n", encoded); err != nil {
		return fmt.Errorf("writing what was found: %w", err)
	}
	return nil
}

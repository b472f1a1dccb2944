package bench

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"symmem/internal/tuning"
)

// Text writes what was measured and chosen for people: a line for each size and half, with how much
// faster the chosen path is than the other one, and a line for each rule.
func (t *Tuned) Text(w io.Writer) error {
	var b bytes.Buffer
	out := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out,
		"operation\ttype\tsize\t\tbuffers\tplain\twindow\tdirect\tnoise\tchosen\twins\t\n")
	for _, r := range t.Rules {
		for _, s := range r.Steps {
			for _, p := range s.Measured {
				fmt.Fprintf(out, "%s\t%s\t%v\t%v\t%s\t%s\t%s\t%s\t%.1f %%\t%s\t%+.1f %%\t\n",
					r.Operation, cmp.Or(r.DataType, t.DataType.String()), p.Bytes, r.HalfOf(p),
					cmp.Or(r.Memory, tuning.Symmetric), measured(p.PlainUS), measured(p.WindowUS),
					measured(p.DirectUS), p.NoisePercent, s.Path, 100*(wins(s.Path, p)-1))
			}
		}
	}
	err := out.Flush()
	for i := range t.Rules {
		fmt.Fprintf(&b, "%v\n", &t.Rules[i])
	}
	for _, skipped := range t.Skipped {
		fmt.Fprintf(&b, "%s\n", skipped)
	}
	_, failed := w.Write(b.Bytes())
	return errors.Join(err, failed)
}

// measured writes a time in microseconds; 0 is one that was not measured.
func measured(us float64) string {
	if us == 0 {
		return "-"
	}
	return duration(us * 1e3)
}

// wins is the time on the path that was not chosen over that on the chosen one.
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

// Document is what there is to tell machines: the table, its file, whether that was written, and
// what was skipped.
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

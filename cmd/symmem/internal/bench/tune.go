package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"symmem"
	"symmem/bench/report"
	"symmem/cmd/symmem/internal/workload"
	"symmem/internal/tuning"
)

// A tuning table has rules such as "for all-reduces on 8 ranks, use the window path up to 64 KiB,
// and the plain path above". A rule contains points: the times of the paths at one size. Run
// replaces the rules of the measured operations in a base table.

// TuneOptions describes the measurements for a tuning table. Except for Date, Base and Progress,
// the options must be the same on all ranks.
type TuneOptions struct {
	// The caller sets Operations, Sizes, DataType, Backend, Plan, Timeout and GraphCalls. Run sets the
	// other options.
	CollectiveOptions
	Date string // of the measurement; only rank 0's Date is used
	// Base returns the base table for a device and a number of ranks, or nil for the built-in table.
	// It is optional, and only rank 0 calls it.
	Base     func(device string, ranks int) *tuning.Table
	Progress func(text string) // if set, called before each measurement
}

// TuneResult contains a new tuning table. It is the same on all ranks.
type TuneResult struct {
	Table   *tuning.Table // the base table with the new rules
	Rules   []tuning.Rule // the new rules in the order of measurement
	Skipped []string      // reasons why operations have no new rule, for users
	Device  string        // name of the GPU or processor
	Ranks   int
}

// Run measures the operations and returns a new table. All ranks must call it. If a measurement
// fails, Run returns the rules so far with the error.
func (o *TuneOptions) Run(ctx context.Context) (result *TuneResult, err error) {
	o.ReduceOp = symmem.Sum
	o.Path = symmem.PathAuto
	o.Tuning = symmem.BuiltInTuning
	o.limitGraphTime = true
	o.Checks = []symmem.CheckLevel{symmem.CheckDefault}
	const onlyLevel = 0
	w, err := openWorld(ctx, &o.CollectiveOptions, onlyLevel)
	if err != nil {
		return nil, fmt.Errorf("opening the world: %w", err)
	}

	defer func() {
		closeErr := w.rt.Close()
		err = errors.Join(err, closeErr)
	}()
	t := &tuner{TuneOptions: o, windowWorld: w}
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}

	runErr := t.run(ctx)
	t.result.Table = t.newTable()
	if runErr != nil {
		return &t.result, runErr
	}

	return &t.result, t.result.Table.Validate()
}

func (o *TuneOptions) reportProgress(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// shareBaseTable returns the base table of rank 0 on all ranks.
func (o *TuneOptions) shareBaseTable(ctx context.Context, w *world) (*tuning.Table, error) {
	const source = 0
	var table *tuning.Table
	if w.rt.Rank() == source {
		table = o.findBaseTable(w.rt)
	}

	byRank, err := workload.Gather(ctx, w.gatherer, table)
	if err != nil {
		return nil, fmt.Errorf("sharing the table: %w", err)
	}

	return byRank[source], nil
}

// findBaseTable returns the table from o.Base or, if there is none, the built-in table.
func (o *TuneOptions) findBaseTable(rt *symmem.Runtime) *tuning.Table {
	info := rt.Device()
	var table *tuning.Table
	if o.Base != nil {
		table = o.Base(info.Name, rt.Size())
	}

	if table == nil {
		table = tuning.Builtin(info.Backend, info.Name)
	}

	return table
}

// skipReason explains to users why an operation has no new rule.
func skipReason(op *Operation, dataType symmem.DataType) string {
	if !op.kind.HasTuningRules() {
		return op.Name + " has no buffers that peers read, so there is nothing to choose"
	}

	return fmt.Sprintf("%s of %v has only one path here, so there is nothing to choose", op.Name,
		dataType)
}

// mergePoints returns newPoints, and the oldPoints of sizes outside their range. newPoints must be
// sorted by size.
func mergePoints(oldPoints, newPoints []tuning.Point) []tuning.Point {
	if len(newPoints) == 0 {
		return nil
	}

	smallest := newPoints[0].Bytes
	largest := newPoints[len(newPoints)-1].Bytes
	merged := slices.Clone(newPoints)
	for _, p := range oldPoints {
		isOutside := p.Bytes < smallest || p.Bytes > largest
		if isOutside {
			merged = append(merged, p)
		}
	}

	return merged
}

// WriteText writes a table of the measured sizes, then each rule, and each skipped operation:
//
//	operation  size                 buffers    plain   window  direct  noise  chosen     wins
//	AllReduce  1KiB  out of place  symmetric  13.0 us  7.40 us       -  1.5 %  window  +75.7 %
//
// Here, the plain path takes 75.7 % longer than the chosen path.
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
	for _, step := range rule.Steps {
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

// directOrTwoLevelUS returns the time of the direct path or, if that was not measured, of the
// two-level path.
func directOrTwoLevelUS(p tuning.Point) float64 { return cmp.Or(p.DirectUS, p.TwoLevelUS) }

func formatMicroseconds(us float64) string {
	if us == 0 { // not measured
		return "-"
	}

	const nsPerMicrosecond = 1e3
	return report.Duration(us * nsPerMicrosecond)
}

// speedup returns the time of the rejected path divided by that of the chosen path. NotDirect is
// the faster of plain and window.
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

// Document returns the fields of the JSON output. file is the name of the file for the new table.
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

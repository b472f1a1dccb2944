package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"symmem"
	"symmem/internal/tuning"
)

// Tune says what to measure for a tuning table. Every rank runs the same one.
type Tune struct {
	Operations []Operation
	// MinBytes to MaxBytes are the sizes, each Factor times the one before.
	MinBytes, MaxBytes, Factor int64
	// DataTypes are measured one after the other. The first decides for all types that have no rules
	// of their own, which each of the others gets.
	DataTypes []symmem.DataType
	// Eager measures calls one by one; else graphs of GraphOps calls, or of as many as fit into a
	// batch, are replayed, where the backend can capture.
	Eager    bool
	GraphOps int
	// Options are what the world is opened with; its table is the built-in one.
	Options symmem.Options
	Plan    Plan
	// Date is when rank 0 measures, and Base gives the table that it begins with, or nil for the
	// built-in one. Those of the other ranks are not used. Its times outside of MinBytes to MaxBytes
	// stay, if they are of the same device and library.
	Date string
	Base func(device string, ranks int) *tuning.Table
	// Progress, if set, is told what is measured.
	Progress func(text string)
}

// Tuned is what a Tune has found: alike on all ranks.
type Tuned struct {
	// Table is the base with the new rules instead of its own for the same operations, types and
	// ranks.
	Table *tuning.Table
	// DataType is that of rules without one.
	DataType symmem.DataType
	// Rules are the new ones, in the order of measurement, and Skipped says which operations have
	// none and why.
	Rules   []tuning.Rule
	Skipped []string
	// Device and Ranks are what the table's file is named by.
	Device string
	Ranks  int
}

// collective is how calls are measured on elements of a type.
func (o *Tune) collective(t symmem.DataType) *Collective {
	c := &Collective{
		Operations: o.Operations, MinBytes: o.MinBytes, MaxBytes: o.MaxBytes, Factor: o.Factor,
		DataType: t, ReduceOp: symmem.Sum, Path: Auto, Compare: true,
		Checks: []symmem.CheckLevel{o.Options.Check}, Worlds: 1, Plan: o.Plan,
		Backend: o.Options.Backend, Tuning: symmem.BuiltInTuning, Timeout: o.Options.Timeout,
	}
	if !o.Eager {
		c.GraphOps, c.fitGraphs = o.GraphOps, true
	}
	return c
}

// Run measures as one rank of a world that a launcher has started.
func (o *Tune) Run(ctx context.Context) (*Tuned, error) {
	t := &tuner{Tune: o, Tuned: &Tuned{DataType: o.DataTypes[0]}}
	for i, dataType := range o.DataTypes {
		if i > 0 {
			t.named = dataType.String()
		}
		if err := t.run(ctx, o.collective(dataType)); err != nil {
			return nil, err
		}
	}
	return t.Tuned, t.Table.Validate()
}

// skipped says why an operation has no rule.
func skipped(op *Operation) string {
	if !op.buffered() {
		return op.Name + " has no buffers that peers read, so there is nothing to choose"
	}
	return op.Name + " has one path here, so there is nothing to choose"
}

// rules derives rules from new times, and from those of the base of other sizes. What the
// measurement does not decide stays as the built-in table has it.
func rules(l *lane, base *tuning.Table, about tuning.Rule, found *points) []tuning.Rule {
	info := l.rt.Device()
	if base.Device != info.Name || base.Library != l.rt.Library() {
		base = &tuning.Table{} // whose times say nothing here
	}
	old := func(m tuning.Memory) [2][]tuning.Point {
		about.Memory = m
		return base.Measured(about)
	}
	otherwise := tuning.Builtin(info.Backend, info.Name).Otherwise
	w, d := around(old(""), found.windows), around(old(tuning.Symmetric), found.direct)
	anywhere := around(old(tuning.Anywhere), [2][]tuning.Point{found.anywhere})
	return slices.Concat(
		tuning.DeriveRules(otherwise, about, w[0], w[1]),
		tuning.DeriveDirect(about, tuning.Symmetric, d[0], d[1]),
		tuning.DeriveDirect(about, tuning.Anywhere, anywhere[0], nil))
}

// around puts old times around new ones of both halves: those of sizes that are smaller or larger
// than what was measured. Where nothing was measured there is nothing to decide.
func around(old, fresh [2][]tuning.Point) (all [2][]tuning.Point) {
	for i, points := range fresh {
		if len(points) == 0 {
			continue
		}
		first, last := points[0].Bytes, points[len(points)-1].Bytes
		for _, p := range old[i] {
			if p.Bytes < first {
				all[i] = append(all[i], p)
			}
		}
		all[i] = append(all[i], points...)
		for _, p := range old[i] {
			if p.Bytes > last {
				all[i] = append(all[i], p)
			}
		}
	}
	return all
}

// withoutGraphs falls back to calls one by one where the backend cannot capture.
func (l *lane) withoutGraphs(c *Collective) error {
	if c.GraphOps == 0 {
		return nil
	}
	s := l.rt.DefaultStream()
	err := s.BeginCapture()
	if errors.Is(err, symmem.ErrUnsupported) {
		c.GraphOps = 0
		return nil
	}
	if err != nil {
		return err
	}
	graph, err := s.EndCapture()
	if err != nil {
		return err
	}
	return graph.Close()
}

func rounded(v, unit float64) float64 { return math.Round(v*unit) / unit }

func (o *Tune) tell(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// RuleOfNoise is what noise does, for people.
const RuleOfNoise = "noise is twice the standard error of the median of the ratios of batches " +
	"that were neighbours, from the quartiles of their logarithms"

// noise is how far the median of ratios can be off by chance, in percent of it. Logarithms make a
// path that was held up as far off as the other one would be.
func noise(ratios []float64) float64 {
	if len(ratios) == 0 {
		return 0
	}
	var logs []float64
	for _, r := range ratios {
		logs = append(logs, math.Log(r))
	}
	slices.Sort(logs)
	return 100 * math.Expm1(medianError(logs))
}

// medianError is how far the median of what is sorted can be off by chance: twice its standard
// error. For a normal distribution the quartiles lie 1.349 standard deviations apart, and the error
// of the median is 1.253 deviations over the root of the number. Outliers, such as a processor that
// was away for a while, do not move quartiles.
func medianError(sorted []float64) float64 {
	n := len(sorted)
	deviation := (sorted[n-1-n/4] - sorted[n/4]) / 1.349
	return 2 * 1.253 * deviation / math.Sqrt(float64(n))
}

// base is the table that rank 0 begins with, on all ranks.
func (o *Tune) base(ctx context.Context, l *lane) (*tuning.Table, error) {
	var encoded []byte
	if l.rt.Rank() == 0 {
		var err error
		if encoded, err = o.present(l.rt).Encode(); err != nil {
			return nil, err
		}
	}
	encoded, err := l.share(ctx, encoded)
	if err != nil {
		return nil, fmt.Errorf("sharing the table: %w", err)
	}
	return tuning.Decode(encoded)
}

// present is the table that this rank finds.
func (o *Tune) present(rt *symmem.Runtime) (table *tuning.Table) {
	info := rt.Device()
	builtin := tuning.Builtin(info.Backend, info.Name)
	if o.Base != nil {
		table = o.Base(info.Name, rt.Size())
	}
	if table == nil {
		return builtin
	}
	if len(table.General()) == 0 {
		// A file from before there was a direct path says nothing about it.
		table = table.Replace(builtin.General()...)
	}
	return table
}

// describe puts the new rules into the base. Rules that the base has about the type which decides
// for all others would hide the new ones.
func (t *tuner) describe(rt *symmem.Runtime, base *tuning.Table) *tuning.Table {
	how := "calls one by one"
	if t.c.GraphOps > 0 {
		how = fmt.Sprintf("replays of graphs of up to %d calls", t.c.GraphOps)
	}
	info, table := rt.Device(), base.Without(t.DataType.String(), t.Rules).Replace(t.Rules...)
	table.Device, table.Library, table.Date = info.Name, rt.Library(), t.Date
	table.Source = fmt.Sprintf("symmem tune: %d batches of %v on each path in turns, %s, %s, medians "+
		"of the slowest rank; %s; %s", t.c.Plan.Batches, t.c.Plan.Batch, t.types(), how,
		tuning.RuleOfDerive, RuleOfNoise)
	if len(table.Rules) > len(t.Rules)+len(table.General()) {
		table.Source += "; rules of other operations, types and ranks, and times of other sizes, were " +
			"there before"
	}
	return table
}

// types names what was measured.
func (o *Tune) types() string {
	var names []string
	for _, t := range o.DataTypes {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/internal/tuning"
)

// Tune says what to measure for a tuning table. Every rank runs the same one.
type Tune struct {
	// Collective has the operations, the sizes, the backend and how long to measure. Graphs have as
	// many calls as fit into a batch, GraphOps at most, where the backend can capture; without
	// GraphOps calls are measured one by one. Run sets the rest.
	Collective
	// DataTypes are measured one after the other. The first decides for all types that have no rules
	// of their own, which each of the others gets.
	DataTypes []symmem.DataType
	// Date is when rank 0 measures, and Base gives the table that it begins with, or nil for the
	// built-in one. Those of the other ranks are not used. Its times of sizes below and above Sizes
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

// Run measures as one rank of a world that a launcher has started.
func (o *Tune) Run(ctx context.Context) (tuned *Tuned, err error) {
	o.ReduceOp, o.Path, o.Tuning, o.fitGraphs = symmem.Sum, symmem.PathAuto, symmem.BuiltInTuning, true
	o.Checks = []symmem.CheckLevel{symmem.CheckDefault}
	// Buffers are made for the largest type.
	o.DataType = slices.MaxFunc(o.DataTypes, func(a, b symmem.DataType) int {
		return cmp.Compare(a.Size(), b.Size())
	})
	t := &tuner{Tune: o}
	if t.in, err = openLane(ctx, &o.Collective, 0); err != nil {
		return nil, fmt.Errorf("opening the world: %w", err)
	}
	defer func() { err = errors.Join(err, t.in.rt.Close()) }()
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	for _, dataType := range o.DataTypes {
		if err := t.run(ctx, dataType); err != nil {
			t.found.Table = t.describe()
			return &t.found, err
		}
	}
	t.found.Table = t.describe()
	return &t.found, t.found.Table.Validate()
}

// skipped says why an operation has no rule from the times of a type.
func skipped(op *Operation, t symmem.DataType) string {
	if !op.buffered() {
		return op.Name + " has no buffers that peers read, so there is nothing to choose"
	}
	return fmt.Sprintf("%s of %v has one path here, so there is nothing to choose", op.Name, t)
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

// shared is the table that rank 0 begins with, on all ranks.
func (o *Tune) shared(ctx context.Context, l *lane) (*tuning.Table, error) {
	var mine *tuning.Table
	if l.rt.Rank() == 0 {
		mine = o.present(l.rt)
	}
	all, err := workload.Gather(ctx, l.gatherer, mine)
	if err != nil {
		return nil, fmt.Errorf("sharing the table: %w", err)
	}
	return all[0], nil
}

// present is the table that this rank finds.
func (o *Tune) present(rt *symmem.Runtime) *tuning.Table {
	info := rt.Device()
	if o.Base != nil {
		if table := o.Base(info.Name, rt.Size()); table != nil {
			return table
		}
	}
	return tuning.Builtin(info.Backend, info.Name)
}

// types names what was measured.
func (o *Tune) types() string {
	var names []string
	for _, t := range o.DataTypes {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

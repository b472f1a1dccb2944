package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/internal/tuning"
)

// Tune measures the times for a tuning table. Every rank runs the same one.
type Tune struct {
	// Collective holds the operations, the sizes, the element type, the backend and how long to
	// measure. Graphs hold as many calls as fit into a batch, at most GraphOps, if the backend can
	// capture; without GraphOps calls are measured one by one. Run sets the other fields.
	Collective
	// Date is when rank 0 measures, and Base gives the table that it begins with, or nil for the
	// built-in one. Those of the other ranks are not used. Its times of sizes below and above Sizes
	// stay, if they are of the same device and library.
	Date string
	Base func(device string, ranks int) *tuning.Table
	// Progress, if set, is told what is measured.
	Progress func(text string)
}

// Tuned is the result of a Tune, the same on all ranks.
type Tuned struct {
	// Table is the base with the new rules in place of its own for the same operations and ranks.
	Table *tuning.Table
	// Rules holds the new rules in the order of measurement. Skipped names the operations without
	// one, with the reason.
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
	t := &tuner{Tune: o}
	if t.in, err = openLane(ctx, &o.Collective, 0); err != nil {
		return nil, fmt.Errorf("opening the world: %w", err)
	}
	defer func() { err = errors.Join(err, t.in.rt.Close()) }()
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	err = t.run(ctx)
	if t.found.Table = t.describe(); err != nil {
		return &t.found, err
	}
	return &t.found, t.found.Table.Validate()
}

// skipped says why an operation has no rule from the times of a type.
func skipped(op *Operation, t symmem.DataType) string {
	if !op.buffered() {
		return op.Name + " has no buffers that peers read, so there is nothing to choose"
	}
	return fmt.Sprintf("%s of %v has one path here, so there is nothing to choose", op.Name, t)
}

// around joins new times, ascending in size, with those old ones that are of smaller or larger
// sizes.
func around(old, fresh []tuning.Point) []tuning.Point {
	if len(fresh) == 0 {
		return nil
	}
	first, last := fresh[0].Bytes, fresh[len(fresh)-1].Bytes
	all := slices.Clone(fresh)
	for _, p := range old {
		if p.Bytes < first || p.Bytes > last {
			all = append(all, p)
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

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

// Tune measures the times for a tuning table. All ranks must use the same configuration.
type Tune struct {
	// Collective sets the operations, the sizes, the element type, the backend and the plan. Run sets
	// the other fields. If GraphOps is not 0 and the backend supports capture, Run measures graphs of
	// up to GraphOps calls, as many as fit into a batch. In all other cases, it measures calls one by
	// one.
	Collective
	// Date is the date of the measurement. Only the value of rank 0 is used.
	Date string
	// Base returns the table to start from, or nil for the built-in table. It is called on rank 0
	// only. If the table was measured with the same device and library, Run keeps its times for sizes
	// outside the range of Sizes.
	Base func(device string, ranks int) *tuning.Table
	// Progress, if set, is called with a description of each measurement.
	Progress func(text string)
}

// Tuned holds the result of Tune.Run, which is the same on all ranks.
type Tuned struct {
	// Table contains the base table's rules and the new rules. A new rule replaces the old rule for
	// the same operation and ranks.
	Table *tuning.Table
	// Rules lists the new rules in the order of measurement.
	Rules []tuning.Rule
	// Skipped explains, for each operation without a new rule, why there is none.
	Skipped []string
	// Device and Ranks determine the name of the table's file.
	Device string
	Ranks  int
}

// Run measures the times as one rank of a world that a launcher has started.
func (o *Tune) Run(ctx context.Context) (tuned *Tuned, err error) {
	o.ReduceOp, o.Path, o.Tuning, o.fitGraphs = symmem.Sum, symmem.PathAuto, symmem.BuiltInTuning, true
	o.Checks = []symmem.CheckLevel{symmem.CheckDefault}
	t := &tuner{Tune: o}
	if t.registered, err = openWorld(ctx, &o.Collective, 0); err != nil {
		return nil, fmt.Errorf("opening the world: %w", err)
	}
	defer func() { err = errors.Join(err, t.registered.rt.Close()) }()
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	err = t.run(ctx)
	if t.tuned.Table = t.describe(); err != nil {
		return &t.tuned, err
	}
	return &t.tuned, t.tuned.Table.Validate()
}

func skipReason(op *Operation, t symmem.DataType) string {
	if !op.hasBuffers() {
		return op.Name + " has no buffers that peers read, so there is nothing to choose"
	}
	return fmt.Sprintf("%s of %v has only one path here, so there is nothing to choose", op.Name, t)
}

// mergePoints returns the new points and the old points whose sizes are outside the range of the
// new ones. newPoints must be in ascending order of size. If it is empty, mergePoints returns nil.
func mergePoints(old, newPoints []tuning.Point) []tuning.Point {
	if len(newPoints) == 0 {
		return nil
	}
	first, last := newPoints[0].Bytes, newPoints[len(newPoints)-1].Bytes
	all := slices.Clone(newPoints)
	for _, p := range old {
		if p.Bytes < first || p.Bytes > last {
			all = append(all, p)
		}
	}
	return all
}

func roundTo(v, unit float64) float64 { return math.Round(v*unit) / unit }

func (o *Tune) report(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// NoiseMethod explains to users how noise is computed.
const NoiseMethod = "noise is twice the standard error of the median ratio of adjacent " +
	"batches, computed from the quartiles of the logarithms"

// noise returns the random error of the median of ratios, in percent. It computes the error from
// logarithms, so that delays of either path have the same weight.
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

// medianError returns twice the standard error of the median of sorted values. It computes this
// error from the quartiles, which outliers such as delays by preemption do not affect: in a normal
// distribution, the quartiles are 1.349 standard deviations apart, and the standard error of the
// median of n values is 1.253 standard deviations divided by the square root of n.
func medianError(sorted []float64) float64 {
	n := len(sorted)
	deviation := (sorted[n-1-n/4] - sorted[n/4]) / 1.349
	return 2 * 1.253 * deviation / math.Sqrt(float64(n))
}

func (o *Tune) baseOfRank0(ctx context.Context, w *world) (*tuning.Table, error) {
	var own *tuning.Table
	if w.rt.Rank() == 0 {
		own = o.localBase(w.rt)
	}
	all, err := workload.Gather(ctx, w.gatherer, own)
	if err != nil {
		return nil, fmt.Errorf("sharing the table: %w", err)
	}
	return all[0], nil
}

func (o *Tune) localBase(rt *symmem.Runtime) *tuning.Table {
	info := rt.Device()
	if o.Base != nil {
		if table := o.Base(info.Name, rt.Size()); table != nil {
			return table
		}
	}
	return tuning.Builtin(info.Backend, info.Name)
}

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

// A tuning table has rules such as "for all-reduces on 8 ranks, use the window path up to 64 KiB,
// and the plain path above". Run measures calls of several sizes on each path, and replaces the
// rules of the measured operations in a base table. The new rules
// keep the times of smaller and larger sizes from the base table.

// TuneOptions describes the measurements for a tuning table. Except for Date, Base and Progress,
// the options must be the same on all ranks.
type TuneOptions struct {
	// The caller sets Operations, Sizes, DataType, Backend, Plan, Timeout and GraphCalls, the maximum
	// number of calls in a graph. Run sets the other fields.
	CollectiveOptions
	Date string // date of the measurement; only rank 0's Date is used
	// Base returns the base table for a device and a number of ranks. If Base is nil or returns nil,
	// Run uses the built-in table. Only rank 0 calls Base. Run keeps times of the base table only if
	// they were measured with the same device, library and data type.
	Base     func(device string, ranks int) *tuning.Table
	Progress func(text string) // if set, called before each measurement
}

// TuneResult is the same on all ranks.
type TuneResult struct {
	Table   *tuning.Table // the base table with the new rules
	Rules   []tuning.Rule // the new rules in the order of measurement
	Skipped []string      // reasons why operations have no new rule, for users
	Device  string        // name of the GPU or processor
	Ranks   int
}

// Run measures the operations and returns a new table. All ranks must call it. If a measurement
// fails, the table has the rules so far. After other errors, the result may be nil.
func (o *TuneOptions) Run(ctx context.Context) (result *TuneResult, err error) {
	o.ReduceOp = symmem.Sum
	o.Path = symmem.PathAuto
	o.Tuning = symmem.BuiltInTuning
	o.limitGraphTime = true
	o.Checks = []symmem.CheckLevel{symmem.CheckDefault}
	const level = 0 // index in o.Checks
	w, err := openWorld(ctx, &o.CollectiveOptions, level)
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
	t.result.Table = t.newTable() // also after an error, because measurements take long
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

// shareBaseTable sends the base table of rank 0 to all ranks, and returns it on each rank.
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
	if o.Base != nil {
		if table := o.Base(info.Name, rt.Size()); table != nil {
			return table
		}
	}

	return tuning.Builtin(info.Backend, info.Name)
}

// skipReason explains to users why an operation has no new rule.
func skipReason(op *Operation, dataType symmem.DataType) string {
	if !op.hasRules() {
		return op.Name + " has no buffers that peers read, so there is nothing to choose"
	}

	return fmt.Sprintf("%s of %v has only one path here, so there is nothing to choose", op.Name,
		dataType)
}

// mergePoints returns newPoints, and those oldPoints that are smaller or larger than all newPoints.
// A point holds the times of one size. newPoints must be sorted by size, but the result is not.
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

// NoiseMethod explains noisePercent to users. New tables contain the text.
const NoiseMethod = "noise is twice the standard error of the median ratio of adjacent " +
	"batches, computed from the quartiles of the logarithms"

// noisePercent returns the random error of the median of ratios, in percent. It uses logarithms, so
// that a doubled and a halved ratio deviate equally.
func noisePercent(ratios []float64) float64 {
	if len(ratios) == 0 {
		return 0
	}

	var logs []float64
	for _, r := range ratios {
		logs = append(logs, math.Log(r))
	}

	slices.Sort(logs)
	relativeError := math.Expm1(medianError(logs))
	return 100 * relativeError
}

// medianError returns twice the standard error of the median of sorted values, which it assumes to
// be normally distributed.
func medianError(sorted []float64) float64 {
	const (
		deviationsBetweenQuartiles = 1.349
		medianFactor               = 1.253 // standard error of the median relative to that of the mean
	)
	n := len(sorted)
	lowerQuartile, upperQuartile := sorted[n/4], sorted[n-1-n/4]
	deviation := (upperQuartile - lowerQuartile) / deviationsBetweenQuartiles
	standardError := medianFactor * deviation / math.Sqrt(float64(n))
	return 2 * standardError
}

// roundTo rounds v to a multiple of 1/partsPerUnit.
func roundTo(v, partsPerUnit float64) float64 { return math.Round(v*partsPerUnit) / partsPerUnit }

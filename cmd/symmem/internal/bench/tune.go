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

// A tuning table has rules that choose the path of a call: the way in which it runs. For example,
// a rule chooses the window path for all-reduces of up to 64 KiB on 8 ranks, and the plain path for
// larger ones. To get such a rule, Run measures calls of several sizes on each path.
//
// Run starts from a base table, and replaces the rules of the measured operations. It keeps the
// other rules. If 1 KiB to 1 MiB are measured now, and the base table has times for 4 MiB, the new
// rule uses those times, too.

// TuneOptions describes the measurements for a tuning table. Except for Date, Base and Progress,
// the options must be the same on all ranks.
type TuneOptions struct {
	// The caller sets Operations, Sizes, DataType, Backend, Plan, Timeout and GraphCalls, which is
	// the maximum number of calls in a graph. Run sets the other fields.
	CollectiveOptions
	Date string // date of the measurement; only rank 0's Date is used
	// Base returns the base table for a device and a number of ranks. If Base is nil or returns nil,
	// the built-in table is used. Only rank 0 calls Base. Times of the base table are used only if
	// they are for the same device, library and data type.
	Base     func(device string, ranks int) *tuning.Table
	Progress func(text string) // if set, called before each measurement
}

// TuneResult is the result of TuneOptions.Run. It is the same on all ranks.
type TuneResult struct {
	Table   *tuning.Table // the base table with the new rules
	Rules   []tuning.Rule // the new rules in the order of measurement
	Skipped []string      // for each operation without a new rule, the reason as a sentence
	Device  string        // name of the GPU or processor
	Ranks   int           // number of ranks
}

// Run measures the operations and returns a new table. All ranks must call it. If a measurement
// fails, the result contains a table with the rules so far. After other errors, the result may be
// nil.
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

// shareBaseTable sends the base table from rank 0 to all ranks, and returns it.
func (o *TuneOptions) shareBaseTable(ctx context.Context, w *world) (*tuning.Table, error) {
	var own *tuning.Table // nil except on rank 0
	if w.rt.Rank() == 0 {
		own = o.findBaseTable(w.rt)
	}

	byRank, err := workload.Gather(ctx, w.gatherer, own)
	if err != nil {
		return nil, fmt.Errorf("sharing the table: %w", err)
	}

	return byRank[0], nil
}

// findBaseTable returns the table of o.Base or, if there is none, the built-in table.
func (o *TuneOptions) findBaseTable(rt *symmem.Runtime) *tuning.Table {
	info := rt.Device()
	if o.Base != nil {
		if table := o.Base(info.Name, rt.Size()); table != nil {
			return table
		}
	}

	return tuning.Builtin(info.Backend, info.Name)
}

// skipReason returns a sentence for the user that explains why an operation has no new rule.
func skipReason(op *Operation, dataType symmem.DataType) string {
	if !op.hasRules() {
		return op.Name + " has no buffers that peers read, so there is nothing to choose"
	}

	return fmt.Sprintf("%s of %v has only one path here, so there is nothing to choose", op.Name,
		dataType)
}

// mergePoints returns the new points, and the old points of sizes that are smaller or larger than
// all new ones. A point holds the measured times of one size. newPoints must be in ascending order
// of size. The result is not in this order.
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

// noisePercent returns the noise of a measurement in percent. Batches (series of calls) on two
// paths alternate, and each pair of adjacent batches gives the ratio of their times. The noise is
// the random error of the median of these ratios.
//
// It is computed from logarithms. A delay on one path, which doubles a ratio, and one on the other
// path, which halves it, thus have the same effect.
func noisePercent(ratios []float64) float64 {
	if len(ratios) == 0 {
		return 0
	}

	var logs []float64
	for _, r := range ratios {
		logs = append(logs, math.Log(r))
	}

	slices.Sort(logs)
	return 100 * math.Expm1(medianError(logs)) // Expm1 converts a logarithm to a relative error.
}

// medianError returns twice the standard error of the median of sorted values. It assumes that they
// have a normal distribution.
func medianError(sorted []float64) float64 {
	const (
		deviationsBetweenQuartiles = 1.349
		medianFactor               = 1.253 // the median's error is this factor times that of the mean
	)
	n := len(sorted)
	lowerQuartile, upperQuartile := sorted[n/4], sorted[n-1-n/4]
	deviation := (upperQuartile - lowerQuartile) / deviationsBetweenQuartiles
	standardError := medianFactor * deviation / math.Sqrt(float64(n))
	return 2 * standardError
}

// roundTo rounds v to a multiple of 1/parts.
func roundTo(v, parts float64) float64 { return math.Round(v*parts) / parts }

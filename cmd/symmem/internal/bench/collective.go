package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem"
	"symmem/bench/report"
)

// CollectiveOptions describes what to measure. The options must be the same on all ranks.
type CollectiveOptions struct {
	Operations []Operation
	Sizes      []int64 // sizes of calls in bytes
	DataType   symmem.DataType
	ReduceOp   symmem.ReduceOp
	Path       symmem.PathChoice
	// OutsideWindows places the buffers outside windows, that is, in memory that is not registered
	// on all ranks. With PathPlain, buffers are always outside windows.
	OutsideWindows bool
	// Compare measures PathAuto and every path that a call can take, alternately. Path must be
	// PathAuto, and Checks must contain a single level.
	Compare bool
	// GraphCalls is the number of calls to capture in a graph, whose replays are measured. With 0,
	// the calls are made and measured without a graph.
	GraphCalls int
	Backend    string // as in symmem.Options
	Tuning     string // as in symmem.Options
	// Checks lists the check levels to measure, alternately. The results are those of the last
	// level. If there are several levels, the first one is the baseline.
	Checks []symmem.CheckLevel
	// Worlds is the number of worlds (a Runtime with its buffers) to open at each check level. The
	// buffers of different worlds have different addresses, which can change the time of small
	// messages by a tenth.
	Worlds  int
	InPlace bool          // also measure operations in place if they support it
	Iters   int           // calls or replays in a batch; with 0, a batch takes about Plan.Batch
	Timeout time.Duration // maximum wait for another rank
	Plan    Plan

	limitGraphTime bool // capture fewer calls if GraphCalls would take longer than a batch
	isWarm         bool // set before the first measurement, which has more warm-up rounds
}

// bufferBytes returns the size of a buffer for calls of up to maxCallBytes. The size of a call is
// rounded up to whole elements for each rank, so a buffer has room for one more element per rank.
func (o *CollectiveOptions) bufferBytes(maxCallBytes int64, ranks int) int64 {
	return maxCallBytes + int64(ranks*o.DataType.Size())
}

// sizesOf returns the sizes at which an operation is measured.
func (o *CollectiveOptions) sizesOf(op *Operation) []int64 {
	if op.kind == symmem.OpBarrier {
		return []int64{0}
	}

	return o.Sizes
}

// Row holds the results of one operation at one size.
type Row struct {
	Operation *Operation
	Bytes     int64 // size of the larger buffer of a call
	Count     int64 // count argument of the calls
	Ranks     int   // number of ranks
	// Results holds the result of calls out of place and the result of calls in place. The second
	// is nil if calls in place were not measured.
	Results [2]*report.Result
}

// Run measures collectives, and calls emit with each row of results. All ranks must call Run. Each
// rank gets all rows.
func (o *CollectiveOptions) Run(ctx context.Context, emit func(*Row) error) error {
	worlds, err := o.openWorlds(ctx)
	if err == nil {
		err = o.measureRows(ctx, worlds, emit)
	}

	for _, w := range worlds {
		closeErr := w.rt.Close()
		err = errors.Join(err, closeErr)
	}

	return err
}

// openWorlds opens o.Worlds worlds at each check level. With an error, it returns the worlds that
// are already open.
func (o *CollectiveOptions) openWorlds(ctx context.Context) ([]*world, error) {
	var worlds []*world
	for i := range o.Worlds * len(o.Checks) {
		level := i % len(o.Checks)
		w, err := openWorld(ctx, o, level)
		if err != nil {
			return worlds, fmt.Errorf("opening world %d: %w", i, err)
		}

		worlds = append(worlds, w)
	}

	return worlds, nil
}

func (o *CollectiveOptions) measureRows(
	ctx context.Context, worlds []*world, emit func(*Row) error,
) error {
	for i := range o.Operations {
		op := &o.Operations[i]
		if op.kind == symmem.OpSend && worlds[0].rt.Size() == 1 {
			continue // a single rank has no peer
		}

		for _, size := range o.sizesOf(op) {
			row, err := o.measureRow(ctx, worlds, op, size)
			if err != nil {
				return fmt.Errorf("measuring %s of %d bytes: %w", op.Name, size, err)
			}

			if err := emit(row); err != nil {
				return err
			}
		}
	}

	return nil
}

// measureRow measures an operation at one size: out of place and, if requested and possible, in
// place.
func (o *CollectiveOptions) measureRow(
	ctx context.Context, worlds []*world, op *Operation, size int64,
) (*Row, error) {
	row := &Row{Operation: op, Ranks: worlds[0].rt.Size()}
	row.Count, row.Bytes = op.countAndSize(size, row.Ranks, o.DataType)
	modes := []bool{false} // values of inPlace, in the order of Row.Results
	if o.InPlace && op.kind.HasInPlace() {
		modes = append(modes, true)
	}

	for i, inPlace := range modes {
		result, err := o.measureCall(ctx, worlds, row, inPlace)
		if err != nil {
			return nil, err
		}

		row.Results[i] = result
	}

	return row, nil
}

// measureCall measures a call in all worlds, with all path choices to measure.
func (o *CollectiveOptions) measureCall(
	ctx context.Context, worlds []*world, row *Row, inPlace bool,
) (*report.Result, error) {
	refusal := "" // why the call cannot take the requested path, or ""
	var variants []variant
	for _, w := range worlds {
		choices, reason, err := o.pathChoices(ctx, w, row, inPlace)
		if err != nil {
			return nil, err
		}

		refusal = reason // the same in all worlds
		for _, c := range choices {
			variants = append(variants, variant{world: w, choice: c})
		}
	}

	runners, err := o.measureAll(ctx, row, inPlace, variants)
	if err != nil {
		return nil, err
	}

	return o.newResult(row, inPlace, refusal, runners), nil
}

// pathChoices returns the path choices to measure. With Compare, these are PathAuto and, if there
// are several, all paths that the call can take. Otherwise, the choice is the requested path. If
// the call cannot take it, pathChoices returns PathAuto, and the reason as refusal.
func (o *CollectiveOptions) pathChoices(
	ctx context.Context, w *world, row *Row, inPlace bool,
) (choices []symmem.PathChoice, refusal string, err error) {
	if o.Compare {
		paths, err := w.possiblePaths(ctx, o, row, inPlace)
		if err != nil {
			return nil, "", err
		}

		choices = append(choices, symmem.PathAuto)
		if len(paths) == 1 { // only the plain path, which PathAuto takes
			return choices, "", nil
		}

		return append(choices, paths...), "", nil
	}

	if o.Path == symmem.PathAuto || o.Path == symmem.PathPlain { // possible for every call
		return []symmem.PathChoice{o.Path}, "", nil
	}

	refusal, err = w.refusalReason(ctx, o, row, inPlace, o.Path)
	if err != nil {
		return nil, "", err
	}

	if refusal != "" {
		return []symmem.PathChoice{symmem.PathAuto}, refusal, nil
	}

	return []symmem.PathChoice{o.Path}, "", nil
}

// ratios divides each dividend by the divisor at the same index. It ignores the last values of the
// longer slice.
func ratios(dividends, divisors []float64) []float64 {
	all := make([]float64, min(len(dividends), len(divisors)))
	for i := range all {
		all[i] = dividends[i] / divisors[i]
	}

	return all
}

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
	Sizes      []int64 // in bytes
	DataType   symmem.DataType
	ReduceOp   symmem.ReduceOp
	Path       symmem.PathChoice
	// OutsideWindows places the buffers outside windows, that is, in memory that is not registered
	// on all ranks. With PathPlain, buffers are always outside windows.
	OutsideWindows bool
	// Compare measures PathAuto and every path that a call can take, alternately. Path must be
	// PathAuto, and Checks must contain a single level.
	Compare         bool
	GraphCalls      int  // calls in a graph, whose replays are timed; 0 times calls one by one
	limitGraphTime  bool // capture fewer calls if GraphCalls would take longer than a batch
	Backend, Tuning string
	Checks          []symmem.CheckLevel // measured alternately; the last is compared with the first
	// Worlds is the number of worlds to open at each check level. Worlds have memory at different
	// addresses, which can change the time of small messages by a tenth.
	Worlds  int
	InPlace bool          // also measure operations in place if they support it
	Iters   int           // calls or replays in a batch; 0 lets Plan.Batch determine the number
	Timeout time.Duration // maximum wait for another rank
	Plan    Plan
	isWarm  bool // set after the first measurement
}

// bufferBytes returns the size of a buffer. Calls are rounded up to whole elements for each rank.
func (o *CollectiveOptions) bufferBytes(maxCallBytes int64, ranks int) int64 {
	return maxCallBytes + int64(ranks*o.DataType.Size())
}

func (o *CollectiveOptions) sizesOf(op *Operation) []int64 {
	if op.kind == symmem.OpBarrier {
		return []int64{0}
	}
	return o.Sizes
}

// Row holds the results of one operation at one size.
type Row struct {
	Operation *Operation
	Bytes     int64             // see Operation.countAndSize
	Count     int64             // count argument of the calls
	Ranks     int               // number of ranks
	Results   [2]*report.Result // out of place and in place; the latter may be nil
}

// Run measures collectives. All ranks must call it. It calls emit with each row on every rank.
func (o *CollectiveOptions) Run(ctx context.Context, emit func(*Row) error) error {
	var worlds []*world
	var err error
	for i := range o.Worlds * len(o.Checks) {
		var w *world
		if w, err = openWorld(ctx, o, i%len(o.Checks)); err != nil {
			err = fmt.Errorf("opening world %d: %w", i, err)
			break
		}
		worlds = append(worlds, w)
	}
	if err == nil {
		err = o.run(ctx, worlds, emit)
	}
	for _, w := range worlds {
		err = errors.Join(err, w.rt.Close())
	}
	return err
}

func (o *CollectiveOptions) run(ctx context.Context, worlds []*world, emit func(*Row) error) error {
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

func (o *CollectiveOptions) measureRow(
	ctx context.Context, worlds []*world, op *Operation, size int64,
) (row *Row, err error) {
	ranks := worlds[0].rt.Size()
	row = &Row{Operation: op, Ranks: ranks}
	row.Count, row.Bytes = op.countAndSize(size, ranks, o.DataType)
	const outOfPlace, inPlace = false, true
	row.Results[0], err = o.measureCall(ctx, worlds, row, outOfPlace)
	if err != nil {
		return nil, err
	}
	if o.InPlace && op.kind.HasInPlace() {
		row.Results[1], err = o.measureCall(ctx, worlds, row, inPlace)
	}
	return row, err
}

func (o *CollectiveOptions) measureCall(
	ctx context.Context, worlds []*world, row *Row, inPlace bool,
) (*report.Result, error) {
	refusal := ""
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
// are several, all paths that the call can take. If the call cannot take the requested path,
// pathChoices returns PathAuto and, as refusal, the reason.
func (o *CollectiveOptions) pathChoices(
	ctx context.Context, w *world, row *Row, inPlace bool,
) (choices []symmem.PathChoice, refusal string, err error) {
	switch {
	case o.Compare:
		paths, err := w.possiblePaths(ctx, o, row, inPlace)
		if len(paths) == 1 { // only the plain path, which PathAuto takes
			paths = nil
		}
		return append([]symmem.PathChoice{symmem.PathAuto}, paths...), "", err
	case o.Path != symmem.PathAuto && o.Path != symmem.PathPlain:
		refusal, err = w.refusalReason(ctx, o, row, inPlace, o.Path)
		if refusal != "" {
			return []symmem.PathChoice{symmem.PathAuto}, refusal, err
		}
	}
	return []symmem.PathChoice{o.Path}, "", err
}

// ratios returns the ratio of each dividend to the divisor at the same index, as far as both
// exist.
func ratios(dividends, divisors []float64) []float64 {
	all := make([]float64, min(len(dividends), len(divisors)))
	for i := range all {
		all[i] = dividends[i] / divisors[i]
	}
	return all
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem"
	"symmem/bench/report"
)

// Collective configures bench collective. It must be the same on all ranks.
type Collective struct {
	Operations []Operation
	// Sizes are in bytes.
	Sizes    []int64
	DataType symmem.DataType
	ReduceOp symmem.ReduceOp
	Path     symmem.PathChoice
	// Apart places the buffers outside of windows for every path. Path Plain always does.
	Apart bool
	// Compare measures the chosen path against all paths that the call can take, alternating on the
	// same buffers. It needs Path Auto and a single check level.
	Compare bool
	// GraphOps, if not 0, is the number of calls to capture into a graph, whose replays are timed.
	GraphOps int
	// fitGraphs captures fewer calls if GraphOps of them would take longer than a batch.
	fitGraphs bool
	// Backend and Tuning are those of symmem.Options.
	Backend, Tuning string
	// Checks lists the check levels to alternate. With two, the last is measured against the first.
	Checks []symmem.CheckLevel
	// Worlds is the number of worlds at each level, whose batches are combined. The location of a
	// world's memory changes the time of small messages by a tenth.
	Worlds int
	// InPlace adds in-place measurements of operations that support them.
	InPlace bool
	// Iters is the number of calls, or of replays, in a batch; 0 makes batches as long as the plan
	// sets.
	Iters int
	// Timeout bounds every wait for another rank.
	Timeout time.Duration
	Plan    Plan
	// warm reports whether something was measured before, so that processors run at full clock.
	warm bool
}

// room returns the size of a buffer for the largest size, rounded up to whole elements of all
// ranks.
func (o *Collective) room(largest int64, ranks int) int64 {
	return largest + int64(ranks*o.DataType.Size())
}

// sizesOf returns the sizes for one operation. A barrier has no sizes.
func (o *Collective) sizesOf(op *Operation) []int64 {
	if op.kind == symmem.OpBarrier {
		return []int64{0}
	}
	return o.Sizes
}

// Row holds the results of one operation at one size.
type Row struct {
	Operation *Operation
	Bytes     int64
	Count     int64
	Ranks     int
	// Halves holds the results out of place and, unless it is nil, in place.
	Halves [2]*report.Result
}

// Run measures as one rank of a world that a launcher has started. It passes each row to emit, on
// every rank; only rank 0 should write it.
func (o *Collective) Run(ctx context.Context, emit func(*Row) error) error {
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

func (o *Collective) run(ctx context.Context, worlds []*world, emit func(*Row) error) error {
	for i := range o.Operations {
		op := &o.Operations[i]
		if op.kind == symmem.OpSend && worlds[0].rt.Size() == 1 {
			// A single rank has no neighbour.
			continue
		}
		for _, size := range o.sizesOf(op) {
			row, err := o.row(ctx, worlds, op, size)
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

func (o *Collective) row(
	ctx context.Context, worlds []*world, op *Operation, size int64,
) (row *Row, err error) {
	ranks := worlds[0].rt.Size()
	row = &Row{Operation: op, Ranks: ranks}
	row.Count, row.Bytes = op.sized(size, ranks, o.DataType)
	if row.Halves[0], err = o.half(ctx, worlds, row, false); err != nil {
		return nil, err
	}
	if o.InPlace && op.kind.HasInPlace() {
		row.Halves[1], err = o.half(ctx, worlds, row, true)
	}
	return row, err
}

// half measures one half of a row: all path choices at all check levels, alternating.
func (o *Collective) half(
	ctx context.Context, worlds []*world, row *Row, inPlace bool,
) (*report.Result, error) {
	refused := ""
	var ways []way
	for _, w := range worlds {
		choices, why, err := o.choices(ctx, w, row, inPlace)
		if err != nil {
			return nil, err
		}
		refused = why
		for _, c := range choices {
			ways = append(ways, way{world: w, choice: c})
		}
	}
	runners, err := o.race(ctx, row, inPlace, ways)
	if err != nil {
		return nil, err
	}
	return o.result(row, inPlace, refused, runners), nil
}

// choices returns the path choices to alternate in a half. With Compare these are auto and, if
// there are several, the paths that the call can take. If the call cannot take the requested path,
// it is measured with auto, so that an operation without such a kernel does not end the run;
// refused is the reason.
func (o *Collective) choices(
	ctx context.Context, w *world, row *Row, inPlace bool,
) (choices []symmem.PathChoice, refused string, err error) {
	switch {
	case o.Compare:
		paths, err := w.paths(ctx, o, row, inPlace)
		if len(paths) == 1 {
			paths = nil
		}
		return append([]symmem.PathChoice{symmem.PathAuto}, paths...), "", err
	case o.Path != symmem.PathAuto && o.Path != symmem.PathPlain:
		if refused, err = w.refusal(ctx, o, row, inPlace, o.Path); refused != "" {
			return []symmem.PathChoice{symmem.PathAuto}, refused, err
		}
	}
	return []symmem.PathChoice{o.Path}, "", err
}

// ratios divides the batches of one runner by those of another, pairwise.
func ratios(over, under []float64) []float64 {
	all := make([]float64, min(len(over), len(under)))
	for i := range all {
		all[i] = over[i] / under[i]
	}
	return all
}

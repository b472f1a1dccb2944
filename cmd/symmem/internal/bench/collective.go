package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem"
	"symmem/bench/report"
)

// Collective configures bench collective. All ranks must use the same configuration.
type Collective struct {
	Operations []Operation
	// Sizes are in bytes.
	Sizes    []int64
	DataType symmem.DataType
	ReduceOp symmem.ReduceOp
	Path     symmem.PathChoice
	// OutsideWindows places the buffers outside of windows on every path. On PathPlain they always
	// are.
	OutsideWindows bool
	// Compare measures PathAuto against every path that a call can take, alternating on the same
	// buffers. It needs PathAuto and a single check level.
	Compare bool
	// GraphOps is the number of calls to capture into a graph, whose replays are then timed. If it
	// is 0, calls are timed one by one.
	GraphOps int
	// fitGraphs captures fewer calls if GraphOps of them would take longer than a batch.
	fitGraphs bool
	// Backend and Tuning are fields of symmem.Options.
	Backend, Tuning string
	// Checks lists the check levels to measure alternately. With two levels, the report compares
	// the second with the first.
	Checks []symmem.CheckLevel
	// Worlds is the number of worlds at each level, whose batches are combined. Each world has
	// memory at different addresses, which can change the time of small messages by a tenth.
	Worlds int
	// InPlace adds in-place measurements of operations that support them.
	InPlace bool
	// Iters is the number of calls or replays in a batch. If it is 0, Run derives the number from
	// the plan's batch duration.
	Iters int
	// Timeout limits every wait for another rank.
	Timeout time.Duration
	Plan    Plan
	// warm is set once something has been measured, so that the processors run at full clock.
	warm bool
}

// bufferBytes returns the size of a buffer for calls of up to the largest size. Calls are rounded
// up to a whole number of elements for each rank.
func (o *Collective) bufferBytes(largest int64, ranks int) int64 {
	return largest + int64(ranks*o.DataType.Size())
}

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
	// Halves holds the out-of-place result, then the in-place result, which is nil if it was not
	// measured.
	Halves [2]*report.Result
}

// Run measures collectives as one rank of a world that a launcher has started. It passes each row
// to emit on every rank. Only rank 0 should write the row.
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
			// A single rank has no peer.
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
	row.Count, row.Bytes = op.countAndSize(size, ranks, o.DataType)
	if row.Halves[0], err = o.half(ctx, worlds, row, false); err != nil {
		return nil, err
	}
	if o.InPlace && op.kind.HasInPlace() {
		row.Halves[1], err = o.half(ctx, worlds, row, true)
	}
	return row, err
}

// half measures a row's out-of-place or in-place half, alternating between all path choices and
// check levels.
func (o *Collective) half(
	ctx context.Context, worlds []*world, row *Row, inPlace bool,
) (*report.Result, error) {
	refused := ""
	var variants []variant
	for _, w := range worlds {
		choices, reason, err := o.choices(ctx, w, row, inPlace)
		if err != nil {
			return nil, err
		}
		refused = reason
		for _, c := range choices {
			variants = append(variants, variant{world: w, choice: c})
		}
	}
	runners, err := o.measureAll(ctx, row, inPlace, variants)
	if err != nil {
		return nil, err
	}
	return o.result(row, inPlace, refused, runners), nil
}

// choices returns the path choices that half measures. With Compare, these are PathAuto and each
// path that the call can take, if there are several. If the call cannot take the requested path,
// choices returns PathAuto and the reason.
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
		if refused, err = w.refusalReason(ctx, o, row, inPlace, o.Path); refused != "" {
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

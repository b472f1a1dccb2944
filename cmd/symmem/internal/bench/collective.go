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
	// OutsideWindows places the buffers outside windows on every path, as PathPlain always does.
	OutsideWindows bool
	// Compare measures PathAuto against every path that a call can take, alternating between them on
	// the same buffers. It requires Path to be PathAuto, and Checks to contain a single level.
	Compare bool
	// GraphOps is the number of calls to capture into a graph, whose replays are timed. If it is 0,
	// calls are timed one by one.
	GraphOps int
	// fitGraphs makes graphs smaller if GraphOps calls would take longer than a batch.
	fitGraphs bool
	// Backend and Tuning are fields of symmem.Options.
	Backend, Tuning string
	// Checks lists the check levels to measure alternately. With two levels, the report compares
	// the second with the first.
	Checks []symmem.CheckLevel
	// Worlds is the number of worlds to open at each check level. Their batches are combined, because
	// the time of small messages can differ by a tenth between worlds whose memory is at different
	// addresses.
	Worlds int
	// InPlace adds in-place measurements of operations that support them.
	InPlace bool
	// Iters is the number of calls or replays in a batch. If it is 0, Run derives the number from
	// the plan's batch duration.
	Iters int
	// Timeout bounds every wait for another rank.
	Timeout time.Duration
	Plan    Plan
	// warm is set after the first measurement, when the processors run at full speed.
	warm bool
}

// bufferBytes returns the size of a buffer for calls of up to largest bytes. It includes space for
// rounding the size of a call up to a whole number of elements for each rank.
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
	// Results holds the out-of-place result and then the in-place result, which is nil if it was not
	// measured.
	Results [2]*report.Result
}

// Run measures collectives as one rank of a world that a launcher has started. It passes each row
// to emit on every rank, but only rank 0 should print the rows.
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
			continue // a single rank has no peer
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
	if row.Results[0], err = o.measure(ctx, worlds, row, false); err != nil {
		return nil, err
	}
	if o.InPlace && op.kind.HasInPlace() {
		row.Results[1], err = o.measure(ctx, worlds, row, true)
	}
	return row, err
}

// measure measures one half of a row, out of place or in place. It alternates between all path
// choices and check levels.
func (o *Collective) measure(
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

// choices returns the path choices to measure. With Compare, these are PathAuto and, if the call
// can take more than one path, each path that it can take. If the call cannot take the requested
// path, choices returns PathAuto and the reason for the refusal.
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

// ratios divides each dividend by the divisor with the same index.
func ratios(dividends, divisors []float64) []float64 {
	all := make([]float64, min(len(dividends), len(divisors)))
	for i := range all {
		all[i] = dividends[i] / divisors[i]
	}
	return all
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem"
	"symmem/bench/report"
)

// Each operation is measured at several sizes, and each size makes a row. For example, all_reduce
// at 1 KiB and 1 MiB makes two rows. A row has one or two results: for a call out of place, and for
// the same call in place. In place, the input of the call lies in the buffer for its output.
//
// To get a result, a call is measured in one or more variants. A variant has two parts:
//
//   - The world: a Runtime, which connects the ranks, and buffers for the calls. The Runtime has a
//     check level: how often the ranks check that they make the same calls.
//   - The path choice: in which way a call runs. PathPlain, PathWindow, PathDirect and PathTwoLevel
//     request one of four paths. With PathAuto, symmem chooses the path.
//
// For example, two worlds with the choices PathAuto, PathPlain and PathWindow make six variants.
// In each, several batches (series of calls) are timed. The variants alternate after each batch, so
// that a change of the machine's speed affects all of them.

// CollectiveOptions describes what to measure. The options must be the same on all ranks.
type CollectiveOptions struct {
	// These options describe the calls.

	Operations []Operation
	Sizes      []int64 // of the larger buffer of a call, in bytes; rounded up to whole elements
	DataType   symmem.DataType
	ReduceOp   symmem.ReduceOp // for operations that reduce
	InPlace    bool            // also measure operations in place if they support it

	// These options describe the variants.

	Path symmem.PathChoice // requested for all calls
	// Compare measures PathAuto and every path that a call can take. Path must be PathAuto, and
	// Checks must contain a single level.
	Compare bool
	// Checks lists the check levels to measure. The results are those of the last level. If there
	// are several levels, the results are compared with those of the first.
	Checks []symmem.CheckLevel
	// Worlds is the number of worlds to open at each check level. The buffers of different worlds
	// have different addresses, which can change the time of small messages by a tenth.
	Worlds int
	// OutsideWindows places the buffers outside windows. A window is memory that all ranks have
	// registered. With PathPlain, buffers are always outside windows.
	OutsideWindows bool
	Backend        string        // as in symmem.Options
	Tuning         string        // as in symmem.Options; determines what PathAuto chooses
	Timeout        time.Duration // maximum wait for another rank

	// These options describe the batches.

	Plan Plan // number of batches, and duration of each
	// GraphCalls is the number of calls to record in a graph. A batch then consists of replays, each
	// of which makes all these calls. With 0, there is no graph.
	GraphCalls int
	Iters      int // calls or replays in a batch; with 0, a batch takes about Plan.Batch

	// limitGraphTime is set for tuning. It records fewer calls in a graph if GraphCalls would take
	// longer than Plan.Batch.
	limitGraphTime bool
	// isWarm is set by the first measurement. Only that one has a long warm-up, in which idle
	// processors reach their full clock rate.
	isWarm bool
}

// Row holds the results of one operation at one size.
type Row struct {
	Operation *Operation
	Bytes     int64 // size of the larger buffer of a call
	Count     int64 // count argument of a call, in elements
	Ranks     int   // number of ranks
	// Results holds the result out of place and the result in place. The second is nil if the call
	// was not measured in place.
	Results [2]*report.Result
}

// Run measures all operations, and calls emit with each row. All ranks must call Run. Each rank
// gets all rows.
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

// openWorlds opens o.Worlds worlds at each check level. After an error, it returns the worlds that
// are already open.
func (o *CollectiveOptions) openWorlds(ctx context.Context) ([]*world, error) {
	var worlds []*world
	for range o.Worlds {
		for level := range o.Checks {
			w, err := openWorld(ctx, o, level)
			if err != nil {
				return worlds, fmt.Errorf("opening world %d: %w", len(worlds), err)
			}

			worlds = append(worlds, w)
		}
	}

	return worlds, nil
}

// measureRows measures all operations at all sizes, and calls emit with each row.
func (o *CollectiveOptions) measureRows(
	ctx context.Context, worlds []*world, emit func(*Row) error,
) error {
	ranks := worlds[0].rt.Size() // the same in all worlds
	for i := range o.Operations {
		op := &o.Operations[i]
		hasNoPeer := op.kind == symmem.OpSend && ranks == 1
		if hasNoPeer {
			continue // sends need a second rank
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

// sizesOf returns the sizes at which to measure an operation.
func (o *CollectiveOptions) sizesOf(op *Operation) []int64 {
	if op.kind == symmem.OpBarrier {
		return []int64{0} // a single row, because barriers have no buffers
	}

	return o.Sizes
}

// measureRow measures an operation at one size, in bytes.
func (o *CollectiveOptions) measureRow(
	ctx context.Context, worlds []*world, op *Operation, size int64,
) (*Row, error) {
	row := &Row{Operation: op, Ranks: worlds[0].rt.Size()}
	row.Count, row.Bytes = op.countAndSize(size, row.Ranks, o.DataType)
	outOfPlace, err := o.measureCall(ctx, worlds, row, false)
	if err != nil {
		return nil, err
	}

	row.Results[0] = outOfPlace
	hasInPlace := o.InPlace && op.kind.HasInPlace()
	if !hasInPlace {
		return row, nil
	}

	inPlace, err := o.measureCall(ctx, worlds, row, true)
	if err != nil {
		return nil, err
	}

	row.Results[1] = inPlace
	return row, nil
}

// measureCall measures the call of a row in all its variants, and returns the result.
func (o *CollectiveOptions) measureCall(
	ctx context.Context, worlds []*world, row *Row, inPlace bool,
) (*report.Result, error) {
	var variants []variant
	refusal := ""
	for _, w := range worlds {
		choices, worldRefusal, err := o.pathChoices(ctx, w, row, inPlace)
		if err != nil {
			return nil, err
		}

		refusal = worldRefusal // the same in all worlds, which have the same kind of buffers
		for _, choice := range choices {
			variants = append(variants, variant{world: w, choice: choice})
		}
	}

	runners, err := o.measureAll(ctx, row, inPlace, variants) // a runner for each variant
	if err != nil {
		return nil, err
	}

	return o.newResult(row, inPlace, refusal, runners), nil
}

// pathChoices returns the path choices with which to measure a call in a world.
//
// Without Compare, it returns only the requested choice. If the call cannot take the requested
// path, it returns PathAuto instead, and the reason as refusal. Otherwise, refusal is "".
func (o *CollectiveOptions) pathChoices(
	ctx context.Context, w *world, row *Row, inPlace bool,
) (choices []symmem.PathChoice, refusal string, err error) {
	if o.Compare {
		choices, err = o.choicesToCompare(ctx, w, row, inPlace)
		return choices, "", err
	}

	requested := []symmem.PathChoice{o.Path}
	isAlwaysPossible := o.Path == symmem.PathAuto || o.Path == symmem.PathPlain
	if isAlwaysPossible {
		return requested, "", nil
	}

	refusal, err = w.refusalReason(ctx, o, row, inPlace, o.Path)
	if err != nil {
		return nil, "", err
	}

	if refusal != "" {
		return []symmem.PathChoice{symmem.PathAuto}, refusal, nil
	}

	return requested, "", nil
}

// choicesToCompare returns PathAuto and, if there are several, all paths that a call can take.
func (o *CollectiveOptions) choicesToCompare(
	ctx context.Context, w *world, row *Row, inPlace bool,
) ([]symmem.PathChoice, error) {
	paths, err := w.possiblePaths(ctx, o, row, inPlace)
	if err != nil {
		return nil, err
	}

	choices := []symmem.PathChoice{symmem.PathAuto}
	hasOnlyPlain := len(paths) == 1 // every call can take the plain path
	if hasOnlyPlain {
		return choices, nil // PathAuto takes it too, so there is nothing to compare
	}

	return append(choices, paths...), nil
}

// bufferBytes returns how large a buffer must be for calls of up to maxCallBytes.
//
// Calls are rounded up to whole elements for each rank. For example, a call of 10 bytes with
// elements of 4 bytes on 2 ranks becomes a call of 16 bytes. One more element per rank is enough.
func (o *CollectiveOptions) bufferBytes(maxCallBytes int64, ranks int) int64 {
	extraElements := ranks
	return maxCallBytes + int64(extraElements*o.DataType.Size())
}

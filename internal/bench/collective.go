package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem"
)

// Collective says what bench collective measures. Every rank runs the same one.
type Collective struct {
	Operations []Operation
	// Sizes are in bytes.
	Sizes    []int64
	DataType symmem.DataType
	ReduceOp symmem.ReduceOp
	Path     symmem.PathChoice
	// Apart puts the buffers into no window on any path. Path Plain does that anyway.
	Apart bool
	// Compare measures the path that is chosen against all paths forced that the call can take, in
	// turns on the same buffers. It needs Path Auto and one check level.
	Compare bool
	// GraphOps, if not 0, is how many calls are captured into a graph, whose replays are timed.
	GraphOps int
	// fitGraphs captures fewer calls where GraphOps of them would take longer than a batch.
	fitGraphs bool
	// Backend and Tuning are those of symmem.Options.
	Backend, Tuning string
	// Checks are the check levels that take turns. With two, the last is ours and the first its
	// baseline.
	Checks []symmem.CheckLevel
	// Worlds is how many worlds are opened at each level, with their batches taken together: where
	// the memory of a world happens to lie changes what small messages cost by a tenth.
	Worlds int
	// InPlace adds the in-place half where the operation has one.
	InPlace bool
	// Iters is the number of calls, or of replays, in a batch; 0 makes batches as long as the plan
	// says.
	Iters int
	// Timeout bounds every wait for another rank.
	Timeout time.Duration
	Plan    Plan
	// warm reports whether something was measured before, so that the machine is up to its clock.
	warm bool
}

// room is what a buffer needs for the largest size, rounded up to whole elements of all ranks.
func (o *Collective) room(largest int64, ranks int) int64 {
	return largest + int64(ranks*o.DataType.Size())
}

// sizesOf are those of one operation: a barrier has none.
func (o *Collective) sizesOf(op *Operation) []int64 {
	if op.kind == symmem.OpBarrier {
		return []int64{0}
	}
	return o.Sizes
}

// Half is one half of a row: out of place or in place.
type Half struct {
	// Checked are the times at each check level, in the order of Collective.Checks: those of the
	// slowest rank, a batch each, in nanoseconds a call.
	Checked []Summary
	// Wrong is the number of wrong elements on all ranks, at any check level, on any path.
	Wrong int64
	// Took is the path that the calls took, and Refused says why that is not the one that was asked
	// for, if it is not.
	Took, Refused string
	// Forced has, with Compare, the times on all paths, if there are several, Better is the fastest,
	// and Ratio its time over ours: the median of the ratios of batches that were neighbours, which
	// drift does not move.
	Forced map[symmem.PathChoice]Summary
	Better symmem.PathChoice
	Ratio  float64
}

// Row is one operation at one size.
type Row struct {
	Operation   *Operation
	Bytes       int64
	Count       int64
	Ranks       int
	OutOfPlace  *Half
	InPlaceHalf *Half
}

// Run measures as one rank of a world that a launcher has started, and gives each row to emit, on
// every rank. The sink of rank 0 is the one to write.
func (o *Collective) Run(ctx context.Context, emit func(*Row) error) error {
	var lanes []*lane
	var err error
	for i := range o.Worlds * len(o.Checks) {
		var l *lane
		if l, err = openLane(ctx, o, i%len(o.Checks)); err != nil {
			err = fmt.Errorf("opening world %d: %w", i, err)
			break
		}
		lanes = append(lanes, l)
	}
	if err == nil {
		err = o.run(ctx, lanes, emit)
	}
	for _, l := range lanes {
		err = errors.Join(err, l.rt.Close())
	}
	return err
}

func (o *Collective) run(ctx context.Context, lanes []*lane, emit func(*Row) error) error {
	for i := range o.Operations {
		op := &o.Operations[i]
		if op.kind == symmem.OpSend && lanes[0].rt.Size() == 1 {
			// A rank alone has no neighbour.
			continue
		}
		for _, size := range o.sizesOf(op) {
			row, err := o.row(ctx, lanes, op, size)
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
	ctx context.Context, lanes []*lane, op *Operation, size int64,
) (row *Row, err error) {
	ranks := lanes[0].rt.Size()
	row = &Row{Operation: op, Ranks: ranks}
	row.Count, row.Bytes = op.sized(size, ranks, o.DataType)
	if row.OutOfPlace, err = o.half(ctx, lanes, row, false); err != nil {
		return nil, err
	}
	if o.InPlace && op.inPlace {
		row.InPlaceHalf, err = o.half(ctx, lanes, row, true)
	}
	return row, err
}

// half measures one half of a row: all path choices at all check levels, in turns.
func (o *Collective) half(
	ctx context.Context, lanes []*lane, row *Row, inPlace bool,
) (*Half, error) {
	h := &Half{}
	var ways []way
	for _, l := range lanes {
		choices, err := o.choices(ctx, l, row, inPlace, h)
		if err != nil {
			return nil, err
		}
		for _, c := range choices {
			ways = append(ways, way{lane: l, choice: c})
		}
	}
	runners, err := o.race(ctx, row, inPlace, ways)
	if err != nil {
		return nil, err
	}
	for _, r := range runners {
		h.Wrong += r.wrongs
	}
	h.summarize(o, runners)
	return h, nil
}

// choices are the path choices that take turns in a half: with Compare auto and the paths that the
// call can take, if there are several. A call that cannot take the path that was asked for takes
// the one that auto chooses, so that one operation without a kernel of that kind does not end the
// measurement of the others.
func (o *Collective) choices(
	ctx context.Context, l *lane, row *Row, inPlace bool, h *Half,
) ([]symmem.PathChoice, error) {
	switch {
	case o.Compare:
		paths, err := l.paths(ctx, o, row, inPlace)
		if len(paths) == 1 {
			paths = nil
		}
		return append([]symmem.PathChoice{symmem.PathAuto}, paths...), err
	case o.Path == symmem.PathAuto || o.Path == symmem.PathPlain:
		return []symmem.PathChoice{o.Path}, nil
	}
	why, err := l.refusal(ctx, o, row, inPlace, o.Path)
	if h.Refused = why; why != "" {
		return []symmem.PathChoice{symmem.PathAuto}, err
	}
	return []symmem.PathChoice{o.Path}, err
}

// summarize joins the batches of runners that measured the same.
func (h *Half) summarize(o *Collective, runners []*runner) {
	perLevel, perPath := make([][]float64, len(o.Checks)), map[symmem.PathChoice][]float64{}
	for _, r := range runners {
		if !o.Compare || r.choice == symmem.PathAuto {
			perLevel[r.level] = append(perLevel[r.level], r.perOp...)
			h.Took = r.took
		} else {
			perPath[r.choice] = append(perPath[r.choice], r.perOp...)
		}
	}
	for _, perOp := range perLevel {
		h.Checked = append(h.Checked, Summarize(perOp))
	}
	if len(perPath) > 0 {
		h.compare(perLevel[0], perPath)
	}
}

// compare finds the best of the forced paths.
func (h *Half) compare(ours []float64, perPath map[symmem.PathChoice][]float64) {
	h.Forced = map[symmem.PathChoice]Summary{}
	for path, perOp := range perPath {
		h.Forced[path] = Summarize(perOp)
	}
	h.Better = symmem.PathPlain
	for _, path := range []symmem.PathChoice{symmem.PathWindow, symmem.PathDirect} {
		if s, has := h.Forced[path]; has && s.Median < h.Forced[h.Better].Median {
			h.Better = path
		}
	}
	h.Ratio = Summarize(ratios(perPath[h.Better], ours)).Median
}

// ratios divides the batches of one runner by those of another, turn by turn.
func ratios(over, under []float64) []float64 {
	all := make([]float64, min(len(over), len(under)))
	for i := range all {
		all[i] = over[i] / under[i]
	}
	return all
}

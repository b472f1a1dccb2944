package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem"
)

// Collective says what bench collective measures. Every rank runs the same one.
type Collective struct {
	Operations []Operation
	// MinBytes to MaxBytes are the sizes, each Factor times the one before.
	MinBytes, MaxBytes, Factor int64
	// List replaces those sizes if it is not empty. MaxBytes is its largest then.
	List     []int64
	DataType symmem.DataType
	ReduceOp symmem.ReduceOp
	Path     Path
	// Checks are the check levels that take turns. With two, the last is ours and the first its
	// baseline.
	Checks []symmem.CheckLevel
	// Worlds is how many worlds are opened at each level, with their batches taken together: where
	// the memory of a world happens to lie changes what small messages cost by a tenth.
	Worlds int
	// InPlace adds the in-place half where the operation has one.
	InPlace bool
	// Iters is the number of calls in a batch; 0 makes batches as long as the plan says.
	Iters int
	// Timeout bounds every wait for another rank.
	Timeout time.Duration
	Plan    Plan
}

// Sizes lists the sizes in bytes.
func (o *Collective) Sizes() []int64 {
	if len(o.List) > 0 {
		return o.List
	}
	var sizes []int64
	for s := o.MinBytes; s <= o.MaxBytes; s *= o.Factor {
		sizes = append(sizes, s)
	}
	return sizes
}

// sizesOf are those of one operation: a barrier has none.
func (o *Collective) sizesOf(op *Operation) []int64 {
	if op.kind == symmem.OpBarrier {
		return []int64{0}
	}
	return o.Sizes()
}

func (o *Collective) pattern(op *Operation, count int64, ranks int) pattern {
	return pattern{operation: op, reduceOp: o.ReduceOp, count: count, ranks: int64(ranks)}
}

// Half is one half of a row: out of place or in place.
type Half struct {
	// Checked are the times at each check level, in the order of Collective.Checks: those of the
	// slowest rank, a batch each, in nanoseconds a call.
	Checked []Summary
	// Wrong is the number of wrong elements on all ranks, at any check level.
	Wrong int64
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

// runner is a lane in the middle of a half.
type runner struct {
	*lane
	call  *call
	iters int
	perOp []float64
}

func (o *Collective) half(
	ctx context.Context, lanes []*lane, row *Row, inPlace bool,
) (*Half, error) {
	h := &Half{}
	var runners []*runner
	for _, l := range lanes {
		c, err := l.call(o, row.Operation, row.Count, inPlace)
		if err != nil {
			return nil, err
		}
		r := &runner{lane: l, call: c}
		if err := r.check(ctx, o, row, inPlace, h); err != nil {
			return nil, err
		}
		if err := r.calibrate(ctx, o, row.Operation); err != nil {
			return nil, err
		}
		runners = append(runners, r)
	}
	for range o.Plan.Batches {
		for _, r := range runners {
			if err := r.batch(ctx, row.Operation); err != nil {
				return nil, err
			}
		}
		// Who went last goes first, so that being second is nobody's advantage.
		slices.Reverse(runners)
	}
	perLevel := make([][]float64, len(o.Checks))
	for _, r := range runners {
		perLevel[r.level] = append(perLevel[r.level], r.perOp...)
	}
	for _, perOp := range perLevel {
		h.Checked = append(h.Checked, Summarize(perOp))
	}
	return h, nil
}

// check runs the operation once on a known pattern and looks at the path and the result.
func (r *runner) check(
	ctx context.Context, o *Collective, row *Row, inPlace bool, h *Half,
) error {
	op := row.Operation
	if err := r.explain(o, op); err != nil {
		return err
	}
	r.fill(o, op, row.Count, inPlace)
	if err := r.meet(ctx); err != nil {
		return err
	}
	if err := op.launch(ctx, r.rt.World(), r.call); err != nil {
		return err
	}
	if err := r.finish(ctx); err != nil {
		return err
	}
	all, err := r.gather(ctx, r.wrong(o, op, row.Count, inPlace))
	for _, wrong := range all {
		h.Wrong += wrong
	}
	return err
}

// explain refuses to measure another path than the one that was asked for.
func (r *runner) explain(o *Collective, op *Operation) error {
	if o.Path == Auto || op.kind == symmem.OpSend || op.kind == symmem.OpBarrier {
		return nil
	}
	e, err := r.rt.World().Explain(
		op.kind, r.call.send, r.call.recv, r.call.count, o.DataType)
	if err == nil && (e.Path != string(o.Path) || e.Registers) {
		err = fmt.Errorf("%v: %w", e, ErrPath)
	}
	return err
}

// calibrate finds the number of calls in a batch. Rank 0 decides, so that all make equally many.
func (r *runner) calibrate(ctx context.Context, o *Collective, op *Operation) error {
	if r.iters = o.Iters; r.iters > 0 {
		_, err := r.timed(ctx, op)
		return err
	}
	for r.iters = 1; ; r.iters *= 2 {
		took, err := r.timed(ctx, op)
		if err != nil {
			return err
		}
		all, err := r.gather(ctx, took.Nanoseconds())
		if err != nil {
			return err
		}
		if got := time.Duration(all[0]); got >= o.Plan.Batch/2 || r.iters >= maxOps {
			r.iters = max(1, int(float64(r.iters)*float64(o.Plan.Batch)/float64(max(got, 1))))
			return nil
		}
	}
}

// timed runs a batch from a common start.
func (r *runner) timed(ctx context.Context, op *Operation) (time.Duration, error) {
	if err := r.meet(ctx); err != nil {
		return 0, err
	}
	world := r.rt.World()
	begin := time.Now()
	for range r.iters {
		if err := op.launch(ctx, world, r.call); err != nil {
			return 0, err
		}
	}
	err := r.finish(ctx)
	return time.Since(begin), err
}

// batch keeps the time of the slowest rank.
func (r *runner) batch(ctx context.Context, op *Operation) error {
	took, err := r.timed(ctx, op)
	if err != nil {
		return err
	}
	all, err := r.gather(ctx, took.Nanoseconds())
	if err != nil {
		return err
	}
	longest := int64(0)
	for _, ns := range all {
		longest = max(longest, ns)
	}
	r.perOp = append(r.perOp, float64(longest)/float64(r.iters))
	return nil
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"symmem"
)

// runner measures one call in a world with one path choice.
type runner struct {
	world  *world
	choice symmem.PathChoice
	call   *call
	// took is the path that the call takes, and wrongs the number of wrong elements on all ranks.
	took   string
	wrongs int64
	// graph holds the captured calls, if any; opsPerIter is their number.
	graph      *symmem.Graph
	opsPerIter int
	// iters is the number of calls, or of replays, in a batch.
	iters int
	// perOp holds the nanoseconds per call on the slowest rank, one value per batch.
	perOp []float64
}

// runner prepares a call for measurements: it checks its result, captures it if requested, and
// calibrates the length of its batches.
func (o *Collective) runner(
	ctx context.Context, w *world, row *Row, inPlace bool, choice symmem.PathChoice,
) (*runner, error) {
	c, err := w.call(o, row.Operation, row.Count, inPlace)
	if err != nil {
		return nil, err
	}
	r := &runner{world: w, choice: choice, call: c, opsPerIter: 1}
	if err := w.take(ctx, choice); err != nil {
		return nil, err
	}
	if err := r.check(ctx, o); err != nil {
		return nil, err
	}
	if err := r.capture(ctx, o); err != nil {
		return nil, err
	}
	if err := r.calibrate(ctx, o); err != nil {
		return nil, errors.Join(err, forget([]*runner{r}))
	}
	return r, nil
}

// check runs the operation once on a known pattern and checks the path and the result.
func (r *runner) check(ctx context.Context, o *Collective) error {
	if err := r.look(o); err != nil {
		return err
	}
	if err := r.fill(ctx); err != nil {
		return err
	}
	if err := r.world.meet(ctx); err != nil {
		return err
	}
	if err := r.launch(ctx); err != nil {
		return err
	}
	if err := r.world.finish(ctx); err != nil {
		return err
	}
	mine, err := r.wrong(ctx)
	if err != nil {
		return err
	}
	all, err := r.world.gather(ctx, mine)
	for _, wrong := range all {
		r.wrongs += wrong
	}
	return err
}

// look records the path, and returns an error if it is not the requested one.
func (r *runner) look(o *Collective) error {
	if r.call.Operation == symmem.OpSend {
		r.took = symmem.PathPlain.String()
		return nil
	}
	e, err := r.world.explain(r.call)
	if r.took = e.Path; err != nil || r.choice == symmem.PathAuto {
		return err
	}
	if e.Path != r.choice.String() || registered(o.Path) && e.Registers {
		return fmt.Errorf("%v: the requested path is %v", e, r.choice)
	}
	return nil
}

// launch makes the call once.
func (r *runner) launch(ctx context.Context) error {
	return r.call.Launch(ctx, nil, r.call.second)
}

// capture captures calls into a graph, if requested.
func (r *runner) capture(ctx context.Context, o *Collective) error {
	if o.GraphOps == 0 {
		return nil
	}
	ops, err := r.fitting(ctx, o)
	if err != nil {
		return err
	}
	s := r.world.rt.DefaultStream()
	if err := s.BeginCapture(); err != nil {
		return fmt.Errorf("capturing calls: %w", err)
	}
	var failed error
	for range ops {
		if failed = r.launch(ctx); failed != nil {
			break
		}
	}
	graph, err := s.EndCapture()
	if err := errors.Join(failed, err); err != nil {
		return fmt.Errorf("capturing calls: %w", err)
	}
	r.graph, r.opsPerIter = graph, ops
	return nil
}

// fitting returns the number of calls per graph. Rank 0 decides.
func (r *runner) fitting(ctx context.Context, o *Collective) (int, error) {
	if !o.fitGraphs {
		return o.GraphOps, nil
	}
	r.iters = 1
	took, err := r.quickest(ctx)
	if err != nil {
		return 0, err
	}
	return min(max(1, int(o.Plan.Batch/max(took, 1))), o.GraphOps), nil
}

// forget closes the graphs of runners.
func forget(runners []*runner) error {
	var errs []error
	for _, r := range runners {
		if r.graph != nil {
			errs = append(errs, r.graph.Close())
		}
	}
	return errors.Join(errs...)
}

// calibrate sets the number of calls per batch. Rank 0 decides, so that all ranks make the same
// number.
func (r *runner) calibrate(ctx context.Context, o *Collective) error {
	if r.iters = o.Iters; r.iters > 0 {
		_, err := r.timed(ctx)
		return err
	}
	for r.iters = 1; ; r.iters *= 2 {
		got, err := r.quickest(ctx)
		if err != nil {
			return err
		}
		if got >= o.Plan.Batch/2 || r.iters >= maxOps {
			r.iters = max(1, int(float64(r.iters)*float64(o.Plan.Batch)/float64(max(got, 1))))
			return nil
		}
	}
}

// coldTries is the number of batches timed for calibration. The first call of an operation, and
// the first replay of a graph, can take a hundred times as long as others. Calibrated by that time
// alone, a batch would have so few calls that its start and end would affect the result.
const coldTries = 3

// quickest returns the shortest time of several batches on rank 0. It is the same on all ranks.
func (r *runner) quickest(ctx context.Context) (time.Duration, error) {
	least := time.Duration(math.MaxInt64)
	for range coldTries {
		took, err := r.timed(ctx)
		if err != nil {
			return 0, err
		}
		least = min(least, took)
	}
	all, err := r.world.gather(ctx, least.Nanoseconds())
	if err != nil {
		return 0, err
	}
	return time.Duration(all[0]), nil
}

// timed runs a batch after all ranks have met.
func (r *runner) timed(ctx context.Context) (time.Duration, error) {
	if err := r.world.meet(ctx); err != nil {
		return 0, err
	}
	begin := time.Now()
	for range r.iters {
		if err := r.once(ctx); err != nil {
			return 0, err
		}
	}
	err := r.world.finish(ctx)
	return time.Since(begin), err
}

// once makes one call, or one replay.
func (r *runner) once(ctx context.Context) error {
	if r.graph != nil {
		return r.graph.Launch(r.world.rt.DefaultStream())
	}
	return r.launch(ctx)
}

// turn sets the path of this runner. After a change plans are made again, by an untimed call;
// graphs keep their paths.
func (r *runner) turn(ctx context.Context) error {
	if r.graph != nil || r.choice == *r.world.set {
		return nil
	}
	if err := r.world.take(ctx, r.choice); err != nil {
		return err
	}
	return r.once(ctx)
}

// batch returns the nanoseconds per call on the slowest rank.
func (r *runner) batch(ctx context.Context) (float64, error) {
	if err := r.turn(ctx); err != nil {
		return 0, err
	}
	took, err := r.timed(ctx)
	if err != nil {
		return 0, err
	}
	all, err := r.world.gather(ctx, took.Nanoseconds())
	if err != nil {
		return 0, err
	}
	return float64(slices.Max(all)) / float64(r.iters*r.opsPerIter), nil
}

// way describes how to make a call: with which buffers, on which path.
type way struct {
	world  *world
	choice symmem.PathChoice
}

// race measures several ways of making a call, alternating.
func (o *Collective) race(
	ctx context.Context, row *Row, inPlace bool, ways []way,
) (runners []*runner, err error) {
	defer func() { err = errors.Join(err, forget(runners)) }()
	for _, w := range ways {
		r, err := o.runner(ctx, w.world, row, inPlace, w.choice)
		if err != nil {
			return runners, err
		}
		runners = append(runners, r)
	}
	return runners, o.play(ctx, runners)
}

// play runs the batches of all runners, alternating, after some warm-up rounds: one, to refill the
// caches after the previous row, and before the first row as many as are measured, since idle
// processors take long to reach full clock.
func (o *Collective) play(ctx context.Context, runners []*runner) error {
	lead := 1
	if !o.warm {
		o.warm, lead = true, o.Plan.Batches
	}
	for round := range lead + o.Plan.Batches {
		for _, i := range turns(len(runners), round) {
			perOp, err := runners[i].batch(ctx)
			if err != nil {
				return err
			}
			if round >= lead {
				runners[i].perOp = append(runners[i].perOp, perOp)
			}
		}
	}
	return nil
}

// turns returns the order of n runners in a round. Each round begins with another runner, and
// after all have begun it is reversed for as many rounds, so that the position in a round favours
// no runner. Steps of 1, -2, 3, -4 and so on make each pair of runners neighbours equally often.
func turns(n, round int) []int {
	order := make([]int, n)
	for i := range order {
		step := (i + 1) / 2
		if i%2 == 0 {
			step = n - step
		}
		order[i] = (round + step) % n
	}
	if round/n%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// fill fills the output with junk and writes this rank's input, if there is any.
func (r *runner) fill(ctx context.Context) error {
	if r.call.Count == 0 {
		return nil
	}
	if err := r.call.Fill(r.world.rt.DefaultStream()); err != nil {
		return err
	}
	return r.world.rt.DefaultStream().Synchronize(ctx)
}

// wrong counts the wrong elements of this rank's output.
func (r *runner) wrong(ctx context.Context) (int64, error) {
	want := r.call.Output(r.world.rt.Rank())
	if len(want) == 0 {
		return 0, nil
	}
	if err := r.call.Read(r.world.rt.DefaultStream()); err != nil {
		return 0, err
	}
	err := r.world.rt.DefaultStream().Synchronize(ctx)
	return r.call.Compare(r.call.Got, want).Wrong, err
}

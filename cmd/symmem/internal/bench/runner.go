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

type runner struct {
	world        *world
	choice       symmem.PathChoice
	call         *call
	path         string        // path that the call takes
	wrong        int64         // number of wrong elements on all ranks
	graph        *symmem.Graph // the captured calls, or nil
	callsPerIter int           // number of captured calls, or 1 without a graph
	iters        int           // number of calls or replays in a batch
	nsPerCall    []float64     // time of each batch on its slowest rank
}

// newRunner checks the result of a call, captures it into a graph if requested, and determines the
// length of a batch.
func (o *CollectiveOptions) newRunner(
	ctx context.Context, w *world, row *Row, inPlace bool, choice symmem.PathChoice,
) (*runner, error) {
	c, err := w.newCall(o, row.Operation, row.Count, inPlace)
	if err != nil {
		return nil, err
	}

	r := &runner{world: w, choice: choice, call: c, callsPerIter: 1}
	if err := w.setPath(ctx, choice); err != nil {
		return nil, err
	}

	if err := r.check(ctx, o); err != nil {
		return nil, err
	}

	if err := r.capture(ctx, o); err != nil {
		return nil, err
	}

	if err := r.calibrate(ctx, o); err != nil {
		return nil, errors.Join(err, closeGraphs([]*runner{r}))
	}

	return r, nil
}

func (r *runner) check(ctx context.Context, o *CollectiveOptions) error {
	if err := r.checkPath(o); err != nil {
		return err
	}

	if err := r.fill(ctx); err != nil {
		return err
	}

	if err := r.world.barrier(ctx); err != nil {
		return err
	}

	if err := r.launch(ctx); err != nil {
		return err
	}

	if err := r.world.synchronize(ctx); err != nil {
		return err
	}

	own, err := r.countWrong(ctx)
	if err != nil {
		return err
	}

	byRank, err := r.world.gather(ctx, own)
	for _, wrong := range byRank {
		r.wrong += wrong
	}

	return err
}

// checkPath records the path of the call. It returns an error if another path was requested.
func (r *runner) checkPath(o *CollectiveOptions) error {
	if r.call.Operation == symmem.OpSend {
		r.path = symmem.PathPlain.String()
		return nil
	}

	e, err := r.world.explain(r.call)
	if r.path = e.Path; err != nil || r.choice == symmem.PathAuto {
		return err
	}

	if e.Path != r.choice.String() || needsRegistration(o.Path) && e.Registers {
		return fmt.Errorf("the call does not take the requested path %v: %v", r.choice, e)
	}

	return nil
}

func (r *runner) launch(ctx context.Context) error {
	return r.call.Launch(ctx, nil, r.call.recvStream)
}

func (r *runner) capture(ctx context.Context, o *CollectiveOptions) error {
	if o.GraphCalls == 0 {
		return nil
	}

	ops, err := r.callsPerGraph(ctx, o)
	if err != nil {
		return err
	}

	s := r.world.rt.DefaultStream()
	if err := s.BeginCapture(); err != nil {
		return fmt.Errorf("capturing calls: %w", err)
	}

	var launchErr error
	for range ops {
		if launchErr = r.launch(ctx); launchErr != nil {
			break
		}
	}

	graph, err := s.EndCapture()
	if err := errors.Join(launchErr, err); err != nil {
		return fmt.Errorf("capturing calls: %w", err)
	}

	r.graph, r.callsPerIter = graph, ops
	return nil
}

func (r *runner) callsPerGraph(ctx context.Context, o *CollectiveOptions) (int, error) {
	if !o.limitGraphTime {
		return o.GraphCalls, nil
	}

	r.iters = 1
	duration, err := r.shortestBatch(ctx)
	if err != nil {
		return 0, err
	}

	return min(max(1, int(o.Plan.Batch/max(duration, 1))), o.GraphCalls), nil
}

func closeGraphs(runners []*runner) error {
	var errs []error
	for _, r := range runners {
		if r.graph != nil {
			errs = append(errs, r.graph.Close())
		}
	}

	return errors.Join(errs...)
}

// calibrate sets the number of calls or replays in a batch. It is the same on all ranks.
func (r *runner) calibrate(ctx context.Context, o *CollectiveOptions) error {
	if r.iters = o.Iters; r.iters > 0 {
		_, err := r.timeBatch(ctx)
		return err
	}

	for r.iters = 1; ; r.iters *= 2 {
		duration, err := r.shortestBatch(ctx)
		if err != nil {
			return err
		}

		if duration >= o.Plan.Batch/2 || r.iters >= maxBatchCalls {
			r.iters = max(1, int(float64(r.iters)*float64(o.Plan.Batch)/float64(max(duration, 1))))
			return nil
		}
	}
}

// calibrationBatches is the number of batches that are timed for calibration. A single batch is not
// enough, because the first call or replay can be a hundred times slower than later ones.
const calibrationBatches = 3

// shortestBatch times several batches and returns, on all ranks, rank 0's shortest time.
func (r *runner) shortestBatch(ctx context.Context) (time.Duration, error) {
	shortest := time.Duration(math.MaxInt64)
	for range calibrationBatches {
		duration, err := r.timeBatch(ctx)
		if err != nil {
			return 0, err
		}

		shortest = min(shortest, duration)
	}

	byRank, err := r.world.gather(ctx, shortest.Nanoseconds())
	if err != nil {
		return 0, err
	}

	return time.Duration(byRank[0]), nil
}

func (r *runner) timeBatch(ctx context.Context) (time.Duration, error) {
	if err := r.world.barrier(ctx); err != nil {
		return 0, err
	}

	begin := time.Now()
	for range r.iters {
		if err := r.runOnce(ctx); err != nil {
			return 0, err
		}
	}

	err := r.world.synchronize(ctx)
	return time.Since(begin), err
}

func (r *runner) runOnce(ctx context.Context) error {
	if r.graph != nil {
		return r.graph.Launch(r.world.rt.DefaultStream())
	}

	return r.launch(ctx)
}

// applyPath sets the path of the world's group. Calls in a graph keep their path. After a change,
// applyPath makes an untimed call, because the first call on a path takes longer.
func (r *runner) applyPath(ctx context.Context) error {
	if r.graph != nil || r.choice == *r.world.path {
		return nil
	}

	if err := r.world.setPath(ctx, r.choice); err != nil {
		return err
	}

	return r.runOnce(ctx)
}

func (r *runner) measureBatch(ctx context.Context) (float64, error) {
	if err := r.applyPath(ctx); err != nil {
		return 0, err
	}

	duration, err := r.timeBatch(ctx)
	if err != nil {
		return 0, err
	}

	byRank, err := r.world.gather(ctx, duration.Nanoseconds())
	if err != nil {
		return 0, err
	}

	return float64(slices.Max(byRank)) / float64(r.iters*r.callsPerIter), nil
}

// variant is a way to make a call: a path, and a world whose buffers the call uses.
type variant struct {
	world  *world
	choice symmem.PathChoice
}

func (o *CollectiveOptions) measureAll(
	ctx context.Context, row *Row, inPlace bool, variants []variant,
) (runners []*runner, err error) {
	defer func() { err = errors.Join(err, closeGraphs(runners)) }()
	for _, v := range variants {
		r, err := o.newRunner(ctx, v.world, row, inPlace, v.choice)
		if err != nil {
			return runners, err
		}

		runners = append(runners, r)
	}

	return runners, o.runBatches(ctx, runners)
}

// runBatches runs the batches of all runners alternately, after warm-up rounds. There are more of
// these before the first row, because idle processors need some time to reach their full clock
// rate.
func (o *CollectiveOptions) runBatches(ctx context.Context, runners []*runner) error {
	warmUp := 1
	if !o.isWarm {
		o.isWarm, warmUp = true, o.Plan.Batches
	}

	for round := range warmUp + o.Plan.Batches {
		for _, i := range runnerOrder(len(runners), round) {
			nsPerCall, err := runners[i].measureBatch(ctx)
			if err != nil {
				return err
			}

			if round >= warmUp {
				runners[i].nsPerCall = append(runners[i].nsPerCall, nsPerCall)
			}
		}
	}

	return nil
}

// runnerOrder returns the order of n runners in a round. Over n rounds, each runner is first once.
// The next n rounds reverse these orders. Within a round, the index changes by 1, -2, 3, -4 and so
// on, so that all pairs of runners are adjacent equally often.
func runnerOrder(n, round int) []int {
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

func (r *runner) fill(ctx context.Context) error {
	if r.call.Count == 0 {
		return nil
	}

	if err := r.call.Fill(r.world.rt.DefaultStream()); err != nil {
		return err
	}

	return r.world.rt.DefaultStream().Synchronize(ctx)
}

func (r *runner) countWrong(ctx context.Context) (int64, error) {
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

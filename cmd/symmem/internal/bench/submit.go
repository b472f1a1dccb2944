package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"symmem"
	"symmem/bench/report"
	"symmem/cmd/symmem/internal/workload"
)

// Submit says what bench submit measures: what it costs the processor to submit one small
// all-reduce. Every rank runs the same one.
type Submit struct {
	// Backend, Check and Timeout are those of symmem.Options.
	Backend string
	Check   symmem.CheckLevel
	Timeout time.Duration
	// Calls is how many are submitted between two synchronisations, a batch.
	Calls int
	// Processors is among how many each rank looks for its fastest one, if it may use as many;
	// there it measures, and keeps its quietest moments. With 0 it measures wherever the system
	// puts it.
	Processors int
	Plan       Plan
}

// SubmitOver is the most nanoseconds that a submission may cost over the library's own, and
// SubmitDirect the most that one on the direct path may cost.
const (
	SubmitOver   = 300
	SubmitDirect = 5000
)

// What is counted of a submission: its time over the baseline's.
const (
	nsOver      = "ns over"
	nsOverNoise = "ns over, noise"
	nsOverLeast = "ns over, least batches"
	nsOverAll   = "ns over, all pairs"
)

// submitCount is the number of float32 elements of a call.
const submitCount = 8

// submission is one way of submitting the call.
type submission struct {
	name   string
	submit func() error
	wait   func() error
	// around runs a batch where the calls of this way can be made.
	around func(batch func() error) error
	// allocs are those of the batch with the fewest, and batches how many there were.
	allocs  uint64
	batches int
}

// collective describes the world of the measurement.
func (o *Submit) collective() *Collective {
	return &Collective{
		DataType: symmem.Float32, ReduceOp: symmem.Sum, Sizes: []int64{4 * submitCount},
		Path: symmem.PathWindow, Checks: []symmem.CheckLevel{o.Check}, Backend: o.Backend,
		Timeout: o.Timeout, Plan: o.Plan,
	}
}

// Run measures as one rank of a world that a launcher has started. Every rank gets the same report,
// but for what is counted on it alone: allocations.
func (o *Submit) Run(ctx context.Context) (rep *report.Report, err error) {
	l, err := openLane(ctx, o.collective(), 0)
	if err != nil {
		return nil, fmt.Errorf("opening the world: %w", err)
	}
	defer func() { err = errors.Join(err, l.rt.Close()) }()
	if l.rt.Size() < 2 {
		return nil, errors.New("a rank alone has no communicator to compare with")
	}
	base, err := o.baseline(ctx, l)
	if err != nil {
		return nil, fmt.Errorf("making the baseline: %w", err)
	}
	defer func() { err = errors.Join(err, base.close()) }()
	rep = NewReport("submit")
	for _, path := range []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect,
	} {
		theirs, err := base.submission(path)
		if err != nil {
			return rep, err
		}
		if theirs == nil {
			continue
		}
		if err := l.take(ctx, path); err != nil {
			return rep, err
		}
		if can, err := l.submits(path); !can {
			if err != nil {
				return rep, err
			}
			continue
		}
		if err := o.compare(ctx, l, path, theirs, rep); err != nil {
			return rep, fmt.Errorf("submitting on the %v path: %w", path, err)
		}
	}
	return rep, nil
}

// submits reports whether a submission takes the path that the world is set to: not all have
// windows, or kernels of our own.
func (l *lane) submits(path symmem.PathChoice) (bool, error) {
	e, err := l.rt.World().Explain(
		symmem.OpAllReduce, l.send.Memory(), l.recv.Memory(), submitCount, symmem.Float32)
	return err == nil && e.Path == path.String(), err
}

// baseline is what submissions are compared with.
type baseline interface {
	// submission is the baseline's way on a path, or nil if it has none.
	submission(path symmem.PathChoice) (*submission, error)
	close() error
}

func (o *Submit) baseline(ctx context.Context, l *lane) (baseline, error) {
	if l.rt.Device().Backend == "nccl" {
		return newNative(l)
	}
	return openBare(ctx, l.rt, o.Timeout)
}

// ours is the submission through the group.
func (l *lane) ours(ctx context.Context) *submission {
	send, recv, g, s := l.send.Memory(), l.recv.Memory(), l.rt.World(), l.rt.DefaultStream()
	return &submission{
		submit: func() error {
			return g.AllReduce(ctx, send, recv, submitCount, symmem.Float32, symmem.Sum, s)
		},
		wait:   func() error { return s.Synchronize(ctx) },
		around: func(batch func() error) error { return batch() },
	}
}

// sides are the times of one rank on one processor, in nanoseconds a call: a batch of ours, and
// one of the baseline.
type sides struct{ Ours, Theirs []float64 }

// account is what one rank has measured: what a submission costs, by the quiet pairs of All.
type account struct {
	Cost       float64
	Quiet, All *sides
}

// sum is less on a faster processor.
func (s *sides) sum() float64 {
	return report.Summarize(s.Ours).Median + report.Summarize(s.Theirs).Median
}

// over are the differences of neighbours, so that what the machine does besides is in both.
func (s *sides) over() []float64 {
	over := make([]float64, len(s.Ours))
	for i := range over {
		over[i] = s.Ours[i] - s.Theirs[i]
	}
	return over
}

// quietest keeps a quarter of the pairs: those before and after which both sides together took
// the least time. What else a machine does slows both for many batches. A pair's own times do not
// choose it: to drop those that took long would favour the side that does so more often.
func (s *sides) quietest() *sides {
	n := len(s.Ours)
	around := func(i int) float64 {
		before, after := max(i-1, 0), min(i+1, n-1)
		switch i {
		case 0:
			before = after
		case n - 1:
			after = before
		}
		return s.Ours[before] + s.Theirs[before] + s.Ours[after] + s.Theirs[after]
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(around(a), around(b)) })
	quiet := &sides{}
	for _, i := range order[:(n+3)/4] {
		quiet.Ours, quiet.Theirs = append(quiet.Ours, s.Ours[i]), append(quiet.Theirs, s.Theirs[i])
	}
	return quiet
}

// compare measures both ways in turns, on the fastest processor of each rank, and reports the rank
// whose submissions cost most over the baseline's, or on the direct path most.
func (o *Submit) compare(
	ctx context.Context, l *lane, path symmem.PathChoice, theirs *submission, rep *report.Report,
) error {
	ours := l.ours(ctx)
	// The first calls may start threads, which are not bound yet.
	if _, err := o.measure(ctx, l, ours, theirs, 1); err != nil {
		return err
	}
	ours.batches = 0
	all, err := o.pairs(ctx, l, ours, theirs)
	if err != nil {
		return err
	}
	times := all.quietest()
	cost := times.over()
	if path == symmem.PathDirect {
		cost = times.Ours // since that has a bar of its own
	}
	worst, err := l.worst(ctx, account{report.Summarize(cost).Median, times, all})
	if err != nil {
		return err
	}
	allocs := float64(ours.allocs / uint64(o.Calls)) // rounded down, as a sample has it
	r := o.result(l, path, worst.Quiet, theirs.name, allocs)
	r.Counts[nsOverAll] = report.Summarize(worst.All.over()).Median
	rep.Results = append(rep.Results, r)
	return nil
}

// decisive is how many times as many batches are measured as a rank takes to find its fastest
// processor: the difference of two times is known far less well than either.
const decisive = 8

// pairs measures both ways on the processor on which they take this rank the least time together.
// All ranks try as many as every one has, at once.
func (o *Submit) pairs(
	ctx context.Context, l *lane, ours, theirs *submission,
) (times *sides, err error) {
	if o.Processors == 0 {
		return o.measure(ctx, l, ours, theirs, decisive*o.Plan.Batches)
	}
	on := func(processor, batches int) error {
		return onProcessor(processor, func() (err error) {
			times, err = o.measure(ctx, l, ours, theirs, batches)
			return err
		})
	}
	mine, err := processorsOf(l.rt.Rank(), l.rt.Size(), o.Processors)
	if err != nil {
		return nil, err
	}
	counts, err := l.gather(ctx, int64(len(mine)))
	if err != nil {
		return nil, err
	}
	fastest, least := 0, math.Inf(1)
	for _, processor := range mine[:slices.Min(counts)] {
		if err := on(processor, o.Plan.Batches); err != nil {
			return nil, err
		}
		if sum := times.sum(); sum < least {
			fastest, least = processor, sum
		}
	}
	err = on(fastest, decisive*o.Plan.Batches)
	return times, err
}

// measure makes batches of both in turns, after one of each that warms the processor up.
func (o *Submit) measure(
	ctx context.Context, l *lane, ours, theirs *submission, batches int,
) (*sides, error) {
	found := &sides{}
	turns := []*submission{ours, theirs}
	for range batches + 1 {
		for _, s := range turns {
			var took float64
			err := s.around(func() (err error) {
				took, err = o.batch(ctx, l, s)
				return err
			})
			if err != nil {
				return nil, err
			}
			if s == ours {
				found.Ours = append(found.Ours, took)
			} else {
				found.Theirs = append(found.Theirs, took)
			}
		}
		slices.Reverse(turns)
	}
	found.Ours, found.Theirs = found.Ours[1:], found.Theirs[1:]
	return found, nil
}

// batch times the calls alone, in nanoseconds a call.
func (o *Submit) batch(ctx context.Context, l *lane, s *submission) (float64, error) {
	if err := l.meet(ctx); err != nil {
		return 0, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	for range o.Calls {
		if err := s.submit(); err != nil {
			return 0, err
		}
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	if allocs := after.Mallocs - before.Mallocs; s.batches == 0 || allocs < s.allocs {
		s.allocs = allocs
	}
	s.batches++
	return float64(took.Nanoseconds()) / float64(o.Calls), s.wait()
}

// worst returns times of the rank with the highest cost, on all ranks.
func (l *lane) worst(ctx context.Context, mine account) (account, error) {
	all, err := workload.Gather(ctx, l.gatherer, mine)
	if err != nil {
		return account{}, err
	}
	return slices.MaxFunc(all, func(a, b account) int { return cmp.Compare(a.Cost, b.Cost) }), nil
}

func (o *Submit) result(
	l *lane, path symmem.PathChoice, times *sides, baseline string, allocs float64,
) report.Result {
	r := report.Result{
		Name: "submit",
		Params: map[string]any{
			"operation": "AllReduce", "count": submitCount, "ranks": l.rt.Size(),
			"path": path.String(), "check": o.Check.String(), "calls": o.Calls,
			"processors": o.Processors,
		},
		Summary: report.Summarize(times.Ours), Counts: map[string]float64{}, AllocsPerOp: allocs,
	}
	base, over := report.Summarize(times.Theirs), times.over()
	r.Against(baseline, base)
	r.Counts[nsOver] = report.Summarize(over).Median
	r.Counts[nsOverNoise] = medianError(slices.Sorted(slices.Values(over)))
	r.Counts[nsOverLeast] = r.Min - base.Min
	if r.Bar = r.Median - r.Counts[nsOver] + SubmitOver; path == symmem.PathDirect {
		r.Bar = SubmitDirect
	}
	return r
}

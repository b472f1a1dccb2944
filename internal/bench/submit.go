package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"symmem"
	"symmem/driver"
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
	Plan  Plan
}

// SubmitOver is the most nanoseconds that a submission may cost over the library's own, and
// SubmitDirect the most that one on the direct path may cost.
const (
	SubmitOver   = 300
	SubmitDirect = 5000
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
	perOp  []float64
	allocs uint64
}

// collective describes the world of the measurement.
func (o *Submit) collective() *Collective {
	return &Collective{
		DataType: symmem.Float32, ReduceOp: symmem.Sum, MaxBytes: 4 * submitCount, Path: Window,
		Checks: []symmem.CheckLevel{o.Check}, Backend: o.Backend, Timeout: o.Timeout, Plan: o.Plan,
	}
}

// Run measures as one rank of a world that a launcher has started. Every rank gets the same report,
// but for what is counted on it alone: allocations.
func (o *Submit) Run(ctx context.Context) (report *Report, err error) {
	c := o.collective()
	l, err := openLane(ctx, c, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the world: %w", err)
	}
	defer func() { err = errors.Join(err, l.rt.Close()) }()
	base, err := o.baseline(ctx, l)
	if err != nil {
		return nil, fmt.Errorf("making the baseline: %w", err)
	}
	defer func() { err = errors.Join(err, base.close()) }()
	report = NewReport("submit")
	for _, path := range []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect,
	} {
		theirs, err := base.submission(path)
		if err != nil {
			return report, err
		}
		if theirs == nil {
			continue
		}
		if err := l.take(ctx, path); err != nil {
			return report, err
		}
		if can, err := l.submits(path); !can {
			if err != nil {
				return report, err
			}
			continue
		}
		if err := o.compare(ctx, l, path, theirs, report); err != nil {
			return report, fmt.Errorf("submitting on the %v path: %w", path, err)
		}
	}
	return report, nil
}

// submits tells whether a submission takes the path that the world is set to. Only the direct path
// may be missing where the baseline has one.
func (l *lane) submits(path symmem.PathChoice) (bool, error) {
	e, err := l.rt.World().Explain(
		symmem.OpAllReduce, l.send.Memory(), l.recv.Memory(), submitCount, symmem.Float32)
	return err == nil && (path != symmem.PathDirect || e.Path == path.String()), err
}

// baseline is what submissions are compared with.
type baseline interface {
	// submission is the baseline's way on a path, or nil if it has none.
	submission(path symmem.PathChoice) (*submission, error)
	close() error
}

func (o *Submit) baseline(ctx context.Context, l *lane) (baseline, error) {
	if l.rt.Device().Backend == "nccl" && l.rt.Size() > 1 {
		return newNative(ctx, l)
	}
	return newLaunches(ctx, l, o.Timeout)
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

// compare measures both ways in turns.
func (o *Submit) compare(
	ctx context.Context, l *lane, path symmem.PathChoice, theirs *submission, report *Report,
) error {
	ours := l.ours(ctx)
	turns := []*submission{ours, theirs}
	for batch := range o.Plan.Batches + 1 {
		for _, s := range turns {
			if err := s.around(func() error { return o.batch(ctx, l, s) }); err != nil {
				return err
			}
		}
		if batch == 0 {
			// The first batches warm up.
			ours.perOp, theirs.perOp, ours.allocs = nil, nil, 0
		}
		slices.Reverse(turns)
	}
	report.Results = append(report.Results, o.result(l, path, ours, theirs))
	return nil
}

// batch times the calls alone, and keeps the time of the slowest rank.
func (o *Submit) batch(ctx context.Context, l *lane, s *submission) error {
	if err := l.meet(ctx); err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	for range o.Calls {
		if err := s.submit(); err != nil {
			return err
		}
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	s.allocs += after.Mallocs - before.Mallocs
	if err := s.wait(); err != nil {
		return err
	}
	all, err := l.gather(ctx, took.Nanoseconds())
	if err != nil {
		return err
	}
	s.perOp = append(s.perOp, float64(slices.Max(all))/float64(o.Calls))
	return nil
}

func (o *Submit) result(
	l *lane, path symmem.PathChoice, ours, theirs *submission,
) Result {
	r := Result{
		Name: "submit",
		Params: map[string]any{
			"operation": "AllReduce", "count": submitCount, "ranks": l.rt.Size(),
			"path": path.String(), "check": o.Check.String(), "calls": o.Calls,
		},
		Summary: Summarize(ours.perOp), Counts: map[string]float64{},
		AllocsPerOp: float64(ours.allocs / uint64(o.Calls*len(ours.perOp))),
	}
	base := Summarize(theirs.perOp)
	r.against(theirs.name, base)
	// Batches lie side by side, so that what the machine does besides is in both.
	over := make([]float64, len(ours.perOp))
	for i := range over {
		over[i] = ours.perOp[i] - theirs.perOp[i]
	}
	r.Counts["ns over"] = Summarize(over).Median
	r.Counts["ns over, least batches"] = r.Min - base.Min
	if r.Bar = r.Median - r.Counts["ns over"] + SubmitOver; path == symmem.PathDirect {
		r.Bar = SubmitDirect
	}
	return r
}

// launches is the baseline where there is no library: the same call at the seam.
type launches struct {
	*bare
	at     uintptr
	window driver.Window
}

func newLaunches(ctx context.Context, l *lane, timeout time.Duration) (*launches, error) {
	b, err := openBare(ctx, l.rt, timeout)
	if err != nil {
		return nil, err
	}
	s, err := b.segment(1)
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	w, err := b.register(ctx, s)
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return &launches{bare: b, at: s.Address(), window: w}, nil
}

// apart is the distance of the two buffers in bytes.
const apart = 4096

func (b *launches) submission(path symmem.PathChoice) (*submission, error) {
	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, ReduceOp: driver.Sum,
		Count: submitCount, Send: b.at, Recv: b.at + apart,
	}
	var why error
	switch path {
	case symmem.PathWindow:
		call.Path, call.SendWindow, call.RecvWindow = driver.PathWindow, b.window, b.window
		why = b.comm.Windowed(&call)
	case symmem.PathDirect:
		call.Path, call.SendWindow, call.RecvWindow = driver.PathDirect, b.window, b.window
		why = b.comm.Direct(&call)
	default:
	}
	if why != nil {
		return nil, b.unlessUnsupported(why)
	}
	plan, err := b.comm.Prepare(call)
	if err != nil {
		return nil, err
	}
	return &submission{
		name:   "launch at the seam",
		submit: func() error { return b.comm.Launch(b.stream, plan) },
		wait:   func() error { return b.stream.Synchronize(context.Background()) },
		around: func(batch func() error) error { return batch() },
	}, nil
}

// unlessUnsupported drops the error that says why there is no such path.
func (b *launches) unlessUnsupported(err error) error {
	if errors.Is(err, symmem.ErrUnsupported) {
		return nil
	}
	return err
}

func (b *launches) close() error { return errors.Join(b.window.Deregister(), b.bare.close()) }

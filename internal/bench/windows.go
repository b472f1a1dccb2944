package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"symmem"
	"symmem/driver"
)

// Windows says what bench windows measures: the registration of memory that grows request by
// request. Every rank runs the same one.
type Windows struct {
	// Bytes is how much is requested in all, in requests of Least to Most bytes that Seed draws.
	Bytes, Least, Most int64
	Seed               uint64
	// Rounds is how often both ways take turns.
	Rounds int
	// Backend and Timeout are those of symmem.Options.
	Backend string
	Timeout time.Duration
}

// MaxWindows is how many windows the growth of a pool may make by the design.
const MaxWindows = 8

// Requests draws the requests in bytes. The last one is what is left.
func (o *Windows) Requests() []int64 {
	draws := rand.New(rand.NewPCG(o.Seed, 0))
	var all []int64
	for left := o.Bytes; left > 0; {
		next := min(left, o.Least+draws.Int64N(o.Most-o.Least+1))
		all = append(all, next)
		left -= next
	}
	return all
}

// growth is what one way of registering cost in each round: nanoseconds on the slowest rank.
type growth struct {
	took    []float64
	windows int
}

// Run measures as one rank of a world that a launcher has started. Every rank gets the same report.
func (o *Windows) Run(ctx context.Context) (report *Report, err error) {
	l, err := openLane(ctx, &Collective{
		DataType: symmem.Float32, MaxBytes: 4, Path: Plain, Backend: o.Backend, Timeout: o.Timeout,
		Checks: []symmem.CheckLevel{symmem.CheckRegistration},
	}, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the world: %w", err)
	}
	defer func() { err = errors.Join(err, l.rt.Close()) }()
	// A group that can do without windows makes none otherwise.
	if err := l.rt.World().SetPath(ctx, symmem.PathWindow); err != nil {
		return nil, err
	}
	b, err := openBare(ctx, l.rt, o.Timeout)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	requests := o.Requests()
	var ours, theirs growth
	turns := []func() error{
		func() error { return ours.pool(ctx, l, requests) },
		func() error { return theirs.each(ctx, l, b, requests) },
	}
	for range o.Rounds {
		for _, turn := range turns {
			if err := turn(); err != nil {
				return nil, fmt.Errorf("registering %d requests: %w", len(requests), err)
			}
		}
		slices.Reverse(turns)
	}
	report = NewReport("windows")
	report.Results = append(report.Results, o.result(l, len(requests), &ours, &theirs))
	return report, nil
}

func (o *Windows) result(l *lane, requests int, ours, theirs *growth) Result {
	r := Result{
		Name: "windows",
		Params: map[string]any{
			"bytes": o.Bytes, "requests": requests, "ranks": l.rt.Size(), "seed": o.Seed,
			"backend": l.rt.Device().Backend,
		},
		Summary: Summarize(ours.took),
		Counts: map[string]float64{
			"windows": float64(ours.windows), "its windows": float64(theirs.windows),
		},
	}
	r.against("a window for each request", Summarize(theirs.took))
	return r
}

// TooMany tells that a report of Windows has more windows than the design allows.
func (r *Report) TooMany() error {
	for i := range r.Results {
		if n := r.Results[i].Counts["windows"]; n > MaxWindows {
			return fmt.Errorf("%s: %v windows, where %d are allowed", r.Results[i].label(), n, MaxWindows)
		}
	}
	return nil
}

// pool grows a pool, with a scope around each request, whose end registers what is new. The time is
// that of all ends.
func (g *growth) pool(ctx context.Context, l *lane, requests []int64) (err error) {
	world := l.rt.World()
	p, err := l.rt.NewPool(symmem.PoolOptions{Domain: world})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	took := time.Duration(0)
	for _, bytes := range requests {
		s := p.Begin(world)
		if _, err := s.Alloc(bytes); err != nil {
			return err
		}
		begin := time.Now()
		if err := s.End(ctx); err != nil {
			return err
		}
		took += time.Since(begin)
	}
	g.windows = p.Stats().Windows
	return g.keep(ctx, l, took)
}

// each maps a segment for each request, and registers it by itself. The time is that of the
// registrations.
func (g *growth) each(ctx context.Context, l *lane, b *bare, requests []int64) error {
	took := time.Duration(0)
	var windows []driver.Window
	for _, bytes := range requests {
		s, err := b.segment(bytes)
		if err != nil {
			return err
		}
		begin := time.Now()
		w, err := b.register(ctx, s)
		if err != nil {
			return err
		}
		took += time.Since(begin)
		windows = append(windows, w)
	}
	g.windows = len(windows)
	err := g.keep(ctx, l, took)
	for _, w := range windows {
		err = errors.Join(err, w.Deregister())
	}
	// Nobody unmaps before everybody has deregistered.
	return errors.Join(err, l.meet(ctx), b.unmapAll())
}

// keep notes the time of the slowest rank.
func (g *growth) keep(ctx context.Context, l *lane, took time.Duration) error {
	all, err := l.gather(ctx, took.Nanoseconds())
	if err == nil {
		g.took = append(g.took, float64(slices.Max(all)))
	}
	return err
}

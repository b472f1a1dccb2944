package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
)

const (
	// patience bounds what should not take long at all; it is reached only when something hangs.
	patience = 2 * time.Minute
	// short is a deadline that tests let pass.
	short = 500 * time.Millisecond
	// arenaGranules is the size of a rank's arena in granules.
	arenaGranules = 256
)

// world is a set of ranks, each with a device, an arena, a stream and a communicator of all.
type world struct {
	options
	t       *testing.T
	harness Harness
	ctx     context.Context
	ranks   []*rank
}

// options choose the kind of a world.
type options struct {
	timeout time.Duration // zero means patience
	bound   time.Duration // of all that the world does; zero means patience
	scatter uint64
	check   bool
	// strict and formula are those of all groups that the ranks connect.
	strict  bool
	formula driver.Formula
	// apart leaves the ranks without a communicator.
	apart bool
	// spoilt means that closing may report faults, because the test causes some.
	spoilt bool
}

// rank is one rank of a world. Its methods that return no error end the rank, and fail the test,
// where a call that must succeed does not.
type rank struct {
	world   *world
	number  int
	running bool   // in a goroutine of its own
	doing   string // what failures say, after the rank
	device  driver.Device
	arena   driver.Arena
	stream  driver.Stream
	group   driver.Communicator
	mapped  int64  // bytes of the arena that are handed out
	windows uint32 // ordinals that are used
	staging []byte // of the host, for copies
	closers []func() error
}

// newWorld opens n ranks and closes them when the test ends. What breaks a world is a test of its
// own, so that its groups are torn down before the next world connects: see Anytime.
func newWorld(t *testing.T, h Harness, n int, o options) *world {
	t.Helper()
	if n > h.Ranks {
		t.Skipf("needs %d ranks, the backend opens %d", n, h.Ranks)
	}
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(o.bound, patience))
	w := &world{options: o, t: t, harness: h, ctx: ctx}
	for i := range n {
		w.ranks = append(w.ranks, &rank{world: w, number: i})
	}
	t.Cleanup(func() {
		defer cancel()
		err := errors.Join(w.outcomes(func(r *rank) error { return r.close() })...)
		if err != nil && !w.spoilt {
			t.Errorf("closing the world: %v", err)
		}
	})
	store := &Store{}
	w.each(func(r *rank) { r.open(store) })
	return w
}

// each runs a function on every rank at once. The test ends if a rank has failed.
func (w *world) each(f func(r *rank)) {
	w.t.Helper()
	if !w.attempt(f) {
		w.t.FailNow()
	}
}

// attempt is each, but returns false if a rank has failed: its caller says more.
func (w *world) attempt(f func(r *rank)) bool {
	var running sync.WaitGroup
	var ended atomic.Int32
	for _, r := range w.ranks {
		running.Go(func() {
			r.running = true
			defer func() { r.running = false }()
			f(r)
			ended.Add(1)
		})
	}
	running.Wait()
	return int(ended.Load()) == len(w.ranks)
}

// outcomes is each for a function that returns an error. It returns those by rank.
func (w *world) outcomes(f func(r *rank) error) []error {
	w.t.Helper()
	errs := make([]error, len(w.ranks))
	w.each(func(r *rank) {
		if err := f(r); err != nil {
			errs[r.number] = fmt.Errorf("rank %d: %w", r.number, err)
		}
	})
	return errs
}

// ok ends the rank if there is an error.
func (r *rank) ok(err error) {
	if err != nil {
		r.world.t.Helper()
		r.failf("%v", err)
	}
}

// failf fails the test and ends the rank, or, of a rank that does not run, the test.
func (r *rank) failf(format string, args ...any) {
	r.world.t.Helper()
	r.world.t.Errorf("rank %d%s: "+format, append([]any{r.number, r.doing}, args...)...)
	if r.running {
		runtime.Goexit()
	}
	r.world.t.FailNow()
}

// at says what the rank comes to, for failures there.
func (r *rank) at(format string, args ...any) { r.doing = ", " + fmt.Sprintf(format, args...) }

// numbers lists the ranks from 0 to n-1.
func numbers(n int) []int {
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = i
	}
	return ranks
}

func (r *rank) open(store driver.Store) {
	w := r.world
	n := len(w.ranks)
	var err error
	r.device, err = w.harness.Open(w.ctx, driver.Config{
		Rank: r.number, Size: n, LocalRank: r.number, Store: store,
		Timeout: cmp.Or(w.timeout, patience), Scatter: w.scatter,
	})
	r.ok(err)
	r.later(r.device.Close)
	r.arena, err = r.device.NewArena(arenaGranules * r.granularity())
	r.ok(err)
	r.later(r.arena.Close)
	if !w.apart {
		r.group = r.connect("world", numbers(n), w.check)
	}
	r.stream = r.newStream()
}

// connect joins a group of which this rank is a member.
func (r *rank) connect(id string, ranks []int, check bool) driver.Communicator {
	c, err := r.device.Connect(r.world.ctx, driver.GroupConfig{
		ID: id, Ranks: ranks, Rank: slices.Index(ranks, r.number), Check: check,
		Strict: r.world.strict, Formula: r.world.formula,
	})
	r.ok(err)
	r.later(c.Close)
	if lazy, ok := c.(driver.LazyWindows); ok {
		r.ok(lazy.UseWindows(r.world.ctx))
	}
	return c
}

func (r *rank) newStream() driver.Stream {
	s, err := r.device.NewStream()
	r.ok(err)
	r.later(s.Close)
	return s
}

func (r *rank) newEvent() driver.Event {
	e, err := r.device.NewEvent()
	r.ok(err)
	return e
}

func (r *rank) granularity() int64 { return r.device.Info().Granularity }

// captured records what a function queues on the rank's stream.
func (r *rank) captured(queue func()) driver.Graph {
	r.ok(r.stream.BeginCapture())
	queue()
	g, err := r.stream.EndCapture()
	r.ok(err)
	r.later(g.Close)
	return g
}

// later closes something when the world ends, the last first.
func (r *rank) later(f func() error) { r.closers = append(r.closers, f) }

func (r *rank) close() error {
	var errs []error
	for _, f := range slices.Backward(r.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// gate holds a stream until it is opened.
type gate struct {
	opened chan struct{}
	once   sync.Once
}

// hold queues a gate on a stream. The world opens it at its end if nobody has.
func (r *rank) hold(s driver.Stream) *gate {
	g := &gate{opened: make(chan struct{})}
	r.later(func() error { g.open(); return nil })
	r.ok(s.Host(func() { <-g.opened }))
	return g
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError fails the test unless err is the target.
func wantError(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", what, err, target)
	}
}

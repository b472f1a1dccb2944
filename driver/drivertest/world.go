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
	// patience bounds waits that should be short. It expires only if something hangs.
	patience = 2 * time.Minute
	// short is a deadline that tests let expire.
	short = 500 * time.Millisecond
	// arenaGranules is the size of a rank's arena in granules.
	arenaGranules = 256
)

// world is a set of ranks, each with a device, an arena, a stream and a communicator of all ranks.
type world struct {
	options
	t       *testing.T
	harness Harness
	ctx     context.Context
	ranks   []*rank
}

// options configures a world.
type options struct {
	timeout time.Duration // zero means patience
	bound   time.Duration // bounds the life of the world; zero means patience
	scatter uint64
	check   bool
	// strict and formula apply to all groups that the ranks connect.
	strict  bool
	formula driver.Formula
	// apart leaves the ranks without a communicator.
	apart bool
	// faulty means that closing may report faults, because the test causes some.
	faulty bool
}

// rank is one rank of a world. Methods that return no error fail the test and end the rank if an
// operation that must succeed fails.
type rank struct {
	world   *world
	number  int
	running bool   // runs in a goroutine
	doing   string // suffix of the rank in failure messages
	device  driver.Device
	arena   driver.Arena
	stream  driver.Stream
	group   driver.Communicator
	mapped  int64  // bytes of the arena in use
	windows uint32 // number of ordinals in use
	staging []byte // host memory for copies
	closers []func() error
}

// newWorld opens n ranks and closes them when the test ends. A case that breaks its world must be a
// separate test, so that its groups are closed before the next world connects: see Anytime.
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
		if err != nil && !w.faulty {
			t.Errorf("closing the world: %v", err)
		}
	})
	store := &Store{}
	w.each(func(r *rank) { r.open(store) })
	return w
}

// each runs a function on every rank concurrently, and ends the test if a rank has failed.
func (w *world) each(f func(r *rank)) {
	w.t.Helper()
	if !w.attempt(f) {
		w.t.FailNow()
	}
}

// attempt runs a function like each, but returns false if a rank has failed, so that the caller can
// add details.
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

// outcomes runs a function like each, and returns its errors by rank.
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

// failf fails the test and ends the rank, or the test if the rank is not running.
func (r *rank) failf(format string, args ...any) {
	r.world.t.Helper()
	r.world.t.Errorf("rank %d%s: "+format, append([]any{r.number, r.doing}, args...)...)
	if r.running {
		runtime.Goexit()
	}
	r.world.t.FailNow()
}

// at sets the step that failure messages mention.
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
		Owner: id,
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

// captured captures the work that a function queues on the rank's stream.
func (r *rank) captured(queue func()) driver.Graph {
	r.ok(r.stream.BeginCapture())
	queue()
	g, err := r.stream.EndCapture()
	r.ok(err)
	r.later(g.Close)
	return g
}

// later registers a function to call when the world ends, in reverse order.
func (r *rank) later(f func() error) { r.closers = append(r.closers, f) }

func (r *rank) close() error {
	var errs []error
	for _, f := range slices.Backward(r.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// gate blocks a stream until it is opened.
type gate struct {
	opened chan struct{}
	once   sync.Once
}

// hold queues a gate on a stream. The world opens it at its end, if the test has not.
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

// wantError fails the test unless err wraps target.
func wantError(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", what, err, target)
	}
}

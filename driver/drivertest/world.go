package drivertest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/ranktest"
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
	harness Harness
	ctx     context.Context
	ranks   []*rank
	// spoilt means that closing may report faults, because the test has caused some.
	spoilt bool
	// strict is whether the groups that ranks connect are strict.
	strict bool
	// formula is that of these groups.
	formula driver.Formula
}

// options choose the kind of a world.
type options struct {
	timeout time.Duration // zero means patience
	bound   time.Duration // of all that the world does; zero means patience
	scatter uint64
	check   bool
	strict  bool
	formula driver.Formula
	// apart leaves the ranks without a communicator.
	apart bool
}

// rank is one rank of a world. Its methods return errors, since it runs in its own goroutine.
type rank struct {
	world   *world
	number  int
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
	w := &world{harness: h, ctx: ctx, strict: o.strict, formula: o.formula}
	for i := range n {
		w.ranks = append(w.ranks, &rank{world: w, number: i})
	}
	t.Cleanup(func() {
		defer cancel()
		err := w.each(func(r *rank) error { return r.close() })
		if err != nil && !w.spoilt {
			t.Errorf("closing the world: %v", err)
		}
	})
	store := &Store{}
	must(t, w.each(func(r *rank) error { return r.open(store, o) }))
	return w
}

// each runs a function on every rank at once and joins the errors.
func (w *world) each(f func(r *rank) error) error { return errors.Join(w.outcomes(f)...) }

// outcomes runs a function on every rank at once and returns the errors by rank.
func (w *world) outcomes(f func(r *rank) error) []error {
	return ranktest.Outcomes(len(w.ranks), func(i int) error { return f(w.ranks[i]) })
}

// numbers lists the ranks from 0 to n-1.
func numbers(n int) []int {
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = i
	}
	return ranks
}

func (r *rank) open(store driver.Store, o options) (err error) {
	n := len(r.world.ranks)
	cfg := driver.Config{
		Rank: r.number, Size: n, LocalRank: r.number, Store: store,
		Timeout: o.timeout, Scatter: o.scatter,
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = patience
	}
	if r.device, err = r.world.harness.Open(r.world.ctx, cfg); err != nil {
		return err
	}
	r.later(r.device.Close)
	if r.arena, err = r.device.NewArena(arenaGranules * r.granularity()); err != nil {
		return err
	}
	r.later(r.arena.Close)
	if !o.apart {
		if r.group, err = r.connect("world", numbers(n), o.check); err != nil {
			return err
		}
	}
	r.stream, err = r.newStream()
	return err
}

// connect joins a group of which this rank is a member.
func (r *rank) connect(id string, ranks []int, check bool) (driver.Communicator, error) {
	c, err := r.device.Connect(r.world.ctx, driver.GroupConfig{
		ID: id, Ranks: ranks, Rank: slices.Index(ranks, r.number), Check: check,
		Strict: r.world.strict, Formula: r.world.formula,
	})
	if err == nil {
		r.later(c.Close)
	}
	if lazy, ok := c.(driver.LazyWindows); ok && err == nil {
		err = lazy.UseWindows(r.world.ctx)
	}
	return c, err
}

func (r *rank) newStream() (driver.Stream, error) {
	s, err := r.device.NewStream()
	if err == nil {
		r.later(s.Close)
	}
	return s, err
}

func (r *rank) granularity() int64 { return r.device.Info().Granularity }

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
func (r *rank) hold(s driver.Stream) (*gate, error) {
	g := &gate{opened: make(chan struct{})}
	r.later(func() error { g.open(); return nil })
	return g, s.Host(func() { <-g.opened })
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

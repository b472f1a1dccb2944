package drivertest

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"symmem/driver"
	"symmem/internal/control/controltest"
)

// rank holds the device of one rank and its resources. Methods that return no error fail the test
// and end the rank if an operation that must succeed fails.
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

// open opens the device, an arena, a group of all ranks and a stream.
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

// newStream makes a stream that is closed with the world.
func (r *rank) newStream() driver.Stream {
	s, err := r.device.NewStream()
	r.ok(err)
	r.later(s.Close)
	return s
}

// newEvent makes an event.
func (r *rank) newEvent() driver.Event {
	e, err := r.device.NewEvent()
	r.ok(err)
	return e
}

// granularity returns the unit of segment sizes.
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

// close calls the registered functions.
func (r *rank) close() error {
	var errs []error
	for _, f := range slices.Backward(r.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// hold queues a gate on a stream. The world opens it at its end, if the test has not.
func (r *rank) hold(s driver.Stream) *gate {
	g := &gate{opened: make(chan struct{})}
	r.later(func() error { g.open(); return nil })
	r.ok(s.Host(func() { <-g.opened }))
	return g
}

// able returns the call on its path, or on the first path if its own refuses it.
func (r *rank) able(c driver.Communicator, call driver.Call) driver.Call {
	if !call.Operation.Takes(call.Path) || c.Offer(call).Refusal(call.Path) != nil {
		call.Path = r.world.harness.Paths[0]
	}
	return call
}

// launch prepares and launches a call and waits for its end. After an error the stream is usable
// again.
func (r *rank) launch(c driver.Communicator, s driver.Stream, call driver.Call) error {
	if err := r.queue(c, s, call); err != nil {
		_ = s.Synchronize(r.world.ctx) // clears the failure, and returns the same error
		return err
	}
	return s.Synchronize(r.world.ctx)
}

// queue prepares and launches a call.
func (r *rank) queue(c driver.Communicator, s driver.Stream, call driver.Call) error {
	plan, err := driver.Prepare(c, call)
	if err != nil {
		return err
	}
	return c.Launch(s, plan)
}

// swap exchanges payloads of the given sizes by rank and checks the results.
func (r *rank) swap(lane driver.Lane, round int, sizes []int) error {
	return controltest.Swap(func(payload []byte) ([][]byte, error) {
		return r.group.Exchange(r.world.ctx, lane, payload)
	}, r.number, round, sizes)
}

// sumOver runs an AllReduce of one byte over a window and checks the result.
func (r *rank) sumOver(c driver.Communicator, b buffer, value byte) {
	const count = 20000
	if !slices.Contains(r.world.harness.Paths, driver.PathWindow) {
		return
	}
	r.ok(r.stream.Fill(b.at(0), value, count))
	r.ok(r.launch(c, r.stream, r.able(c, driver.Call{
		Operation: driver.AllReduce, DataType: driver.Uint8, ReduceOp: driver.Max, Count: count,
		Path: driver.PathWindow, Send: b.at(0), Recv: b.at(count + 96),
		SendWindow: b.window, RecvWindow: b.window, Digest: 1,
	})))
	r.expectAll(b.at(count+96), value, count)
}

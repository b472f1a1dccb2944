package drivertest

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"symmem/driver"
)

// rank is one rank of a test. Methods without an error result report errors with failf. For
// example, this code fills device memory and checks it:
//
//	b := r.newBuffer(64)
//	r.must(r.stream.Fill(b.addressAt(0), 7, 64))
//	r.expectFilled(b.addressAt(0), 7, 64)
type rank struct {
	world          *world
	number         int
	isInGoroutine  bool   // set while onEachRank runs a goroutine for the rank
	step           string // part of failure messages, such as ", round 3"
	device         driver.Device
	arena          driver.Arena
	stream         driver.Stream
	group          driver.Communicator // of all ranks; nil if options.noGroup is set
	nextOffset     int64               // in the arena, for newBuffer
	keyCount       uint32
	launchCount    int
	checkedWindows int    // calls of checkWindow
	staging        []byte // host memory for copies
	closeFuncs     []func() error
}

// must fails the test if err is not nil.
func (r *rank) must(err error) {
	if err != nil {
		r.world.t.Helper()
		r.failf("%v", err)
	}
}

// failf marks the test as failed. It ends the rank's goroutine or, outside onEachRank, the test.
func (r *rank) failf(format string, args ...any) {
	r.world.t.Helper()
	text := fmt.Sprintf(format, args...)
	r.world.t.Errorf("rank %d%s: %s", r.number, r.step, text)
	if r.isInGoroutine {
		runtime.Goexit()
	}

	r.world.t.FailNow()
}

// setStep describes the current step in later failure messages.
func (r *rank) setStep(format string, args ...any) { r.step = ", " + fmt.Sprintf(format, args...) }

// onClose defers f until the world is closed. Functions run in reverse order.
func (r *rank) onClose(f func() error) { r.closeFuncs = append(r.closeFuncs, f) }

func (r *rank) close() error {
	var errs []error
	for _, f := range slices.Backward(r.closeFuncs) {
		errs = append(errs, f())
	}

	return errors.Join(errs...)
}

const worldGroup = "world" // ID of the group of all ranks

// open sets device, arena, stream and, unless noGroup is set, group.
func (r *rank) open(store driver.Store) {
	w := r.world
	n := len(w.ranks)
	var err error
	r.device, err = w.harness.Open(w.ctx, driver.Config{
		Rank: r.number, Size: n, LocalRank: r.number, Store: store,
		Timeout: cmp.Or(w.timeout, longTimeout), Scatter: w.scatter,
	})
	r.must(err)
	r.onClose(r.device.Close)
	r.arena, err = r.device.NewArena(r.arenaBytes())
	r.must(err)
	r.onClose(r.arena.Close)
	if !w.noGroup {
		r.group = r.connect(driver.GroupConfig{
			ID: worldGroup, Ranks: numbersBelow(n), Check: w.checkCalls,
		})
	}

	r.stream = r.newStream()
}

// connect joins the group with the ID, Ranks and Check of cfg. All ranks in cfg.Ranks must call it.
func (r *rank) connect(cfg driver.GroupConfig) driver.Communicator {
	cfg.Rank = slices.Index(cfg.Ranks, r.number)
	cfg.Strict = r.world.isStrict
	cfg.Formula = r.world.formula
	cfg.Owner = cfg.ID
	c, err := r.device.Connect(r.world.ctx, cfg)
	r.must(err)
	r.onClose(c.Close)
	// Some paths need the windows of another library, such as NCCL.
	if lazy, ok := c.(driver.LazyWindows); ok {
		r.must(lazy.UseWindows(r.world.ctx))
	}

	return c
}

func (r *rank) newStream() driver.Stream {
	s, err := r.device.NewStream()
	r.must(err)
	r.onClose(s.Close)
	return s
}

func (r *rank) newEvent() driver.Event {
	e, err := r.device.NewEvent()
	r.must(err)
	return e
}

func (r *rank) granularity() int64 { return r.device.Info().Granularity }

func (r *rank) arenaBytes() int64 { return 256 * r.granularity() }

// capture returns a graph of the work that queueWork queues on r.stream.
func (r *rank) capture(queueWork func()) driver.Graph {
	r.must(r.stream.BeginCapture())
	queueWork()
	g, err := r.stream.EndCapture()
	r.must(err)
	r.onClose(g.Close)
	return g
}

// onSupportedPath returns the call. If c does not support its path, it changes the path to the
// backend's first one.
func (r *rank) onSupportedPath(c driver.Communicator, call driver.Call) driver.Call {
	if !call.Operation.SupportsPath(call.Path) || !accepts(c, call) {
		call.Path = r.world.harness.Paths[0]
	}

	return call
}

// accepts reports whether c supports the call on call.Path.
func accepts(c driver.Communicator, call driver.Call) bool {
	return c.Offer(call).Refusal(call.Path) == nil
}

// launchAndWait launches a call of c on stream s, and waits for it. Every second launch uses
// LaunchInline if c has this method.
func (r *rank) launchAndWait(c driver.Communicator, s driver.Stream, call driver.Call) error {
	launch := c.Launch
	inlineLauncher, canLaunchInline := c.(driver.InlineLauncher)
	if canLaunchInline && r.launchCount%2 == 1 {
		launch = inlineLauncher.LaunchInline
	}

	r.launchCount++
	plan, err := driver.Prepare(c, call)
	if err != nil {
		return err
	}

	if err := launch(s, plan); err != nil {
		_ = s.Synchronize(r.world.ctx) // clears the stream's error, which is also err
		return err
	}

	return s.Synchronize(r.world.ctx)
}

// commonDigest is the Digest of calls on which all ranks agree.
const commonDigest = 1

// queueCall is like launchAndWait, but does not wait or use LaunchInline.
func (r *rank) queueCall(c driver.Communicator, s driver.Stream, call driver.Call) error {
	plan, err := driver.Prepare(c, call)
	if err != nil {
		return err
	}

	return c.Launch(s, plan)
}

package drivertest

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"symmem/driver"
	"symmem/internal/control/controltest"
)

// rank is one rank of a test. Methods without an error result fail the test with a message that
// names the rank. For example, this code fills device memory and checks it:
//
//	b := r.newBuffer(64)
//	r.must(r.stream.Fill(b.addressAt(0), 7, 64))
//	r.expectFilled(b.addressAt(0), 7, 64)
type rank struct {
	world         *world // the ranks of the test
	number        int
	isInGoroutine bool   // set while onEachRank runs a goroutine for the rank
	step          string // ", " and the current step, for failure messages
	device        driver.Device
	arena         driver.Arena // address range for the device's memory
	stream        driver.Stream
	group         driver.Communicator // of all ranks; nil if options.noGroup is set
	mappedBytes   int64               // total size of all newBuffer segments
	keyCount      uint32
	launchCount   int
	staging       []byte         // host memory for copies
	closeFuncs    []func() error // see onClose
}

// must calls failf if err is not nil.
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

// onClose registers a function to call when the world is closed, in reverse order like defer.
func (r *rank) onClose(f func() error) { r.closeFuncs = append(r.closeFuncs, f) }

func (r *rank) close() error {
	var errs []error
	for _, f := range slices.Backward(r.closeFuncs) {
		errs = append(errs, f())
	}

	return errors.Join(errs...)
}

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
	r.arena, err = r.device.NewArena(arenaGranules * r.granularity())
	r.must(err)
	r.onClose(r.arena.Close)
	if !w.noGroup {
		r.group = r.connect("world", firstNumbers(n), w.checkCalls)
	}

	r.stream = r.newStream()
}

// connect joins a group of the given ranks, which include this rank. All of them must call it.
func (r *rank) connect(id string, ranks []int, checkCalls bool) driver.Communicator {
	c, err := r.device.Connect(r.world.ctx, driver.GroupConfig{
		ID: id, Ranks: ranks, Rank: slices.Index(ranks, r.number), Check: checkCalls,
		Strict: r.world.isStrict, Formula: r.world.formula, Owner: id,
	})
	r.must(err)
	r.onClose(c.Close)
	// A backend may use windows of another library, such as NCCL. Create them, so that all paths work.
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

// capture returns a graph of the work that queueWork queues on r.stream.
func (r *rank) capture(queueWork func()) driver.Graph {
	r.must(r.stream.BeginCapture())
	queueWork()
	g, err := r.stream.EndCapture()
	r.must(err)
	r.onClose(g.Close)
	return g
}

// blockStream holds up stream s until the gate is opened or the world is closed.
func (r *rank) blockStream(s driver.Stream) *gate {
	g := &gate{opened: make(chan struct{})}
	r.onClose(func() error {
		g.open()
		return nil
	})
	r.must(s.Host(func() { <-g.opened }))
	return g
}

type gate struct {
	opened chan struct{}
	once   sync.Once
}

// open lets the stream continue. It may be called repeatedly.
func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// onSupportedPath returns the call, on the backend's first path if c does not support call.Path.
func (r *rank) onSupportedPath(c driver.Communicator, call driver.Call) driver.Call {
	isSupported := call.Operation.SupportsPath(call.Path) &&
		c.Offer(call).Refusal(call.Path) == nil
	if isSupported {
		return call
	}

	call.Path = r.world.harness.Paths[0]
	return call
}

// launchAndWait launches a call of group c on stream s, and waits for it. To cover both methods,
// every second call uses LaunchInline if the group has it.
func (r *rank) launchAndWait(c driver.Communicator, s driver.Stream, call driver.Call) error {
	launchCall := c.Launch
	inlineLauncher, canLaunchInline := c.(driver.InlineLauncher)
	if canLaunchInline && r.launchCount%2 == 1 {
		launchCall = inlineLauncher.LaunchInline
	}

	r.launchCount++
	plan, err := driver.Prepare(c, call)
	if err != nil {
		return err
	}

	if err := launchCall(s, plan); err != nil {
		_ = s.Synchronize(r.world.ctx) // clear the stream's error, which err already reports
		return err
	}

	return s.Synchronize(r.world.ctx)
}

// queueCall launches a call of group c on stream s, without waiting for it.
func (r *rank) queueCall(c driver.Communicator, s driver.Stream, call driver.Call) error {
	plan, err := driver.Prepare(c, call)
	if err != nil {
		return err
	}

	return c.Launch(s, plan)
}

// exchangePayloads exchanges payloads between all ranks, and checks them. sizes[i] is the size of
// rank i's payload. The round number varies the contents.
func (r *rank) exchangePayloads(lane driver.Lane, round int, sizes []int) error {
	exchange := func(payload []byte) ([][]byte, error) {
		return r.group.Exchange(r.world.ctx, lane, payload)
	}
	return controltest.ExchangeAndCheck(exchange, r.number, round, sizes)
}

// checkMaximum checks that group c can use b.window, by computing the maximum of elements that all
// equal value. It does nothing if the backend has no window path.
func (r *rank) checkMaximum(c driver.Communicator, b buffer, value byte) {
	if !slices.Contains(r.world.harness.Paths, driver.PathWindow) {
		return
	}

	const count = 20000
	const gap = 96 // between input and output
	input, output := b.addressAt(0), b.addressAt(count+gap)
	r.must(r.stream.Fill(input, value, count))
	call := r.onSupportedPath(c, driver.Call{
		Operation: driver.AllReduce, DataType: driver.Uint8, ReduceOp: driver.Max, Count: count,
		Path: driver.PathWindow, Send: input, Recv: output,
		SendWindow: b.window, RecvWindow: b.window, Digest: 1,
	})
	r.must(r.launchAndWait(c, r.stream, call))
	r.expectFilled(output, value, count)
}

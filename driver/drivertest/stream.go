package drivertest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"symmem/driver"
)

// A stream runs copies, fills of device memory, host functions and collectives in the background,
// in the order in which they were queued. Synchronize waits for them.

var streamRequirements = []requirement{
	{"work runs in the order in which it was queued", testStreamOrder},
	{"host functions run in order, even on a busy stream", testHostOrder},
	{"Synchronize returns an error of queued work exactly once", testErrorOnce},
	{"Synchronize returns when its context ends, and the work continues", testSynchronizeContext},
	{"Close waits for queued work", testStreamClose},
	{"a closed stream refuses work", testStreamClosed},
	{"a negative size causes an error", testNegativeSize},
}

// Each Copy must see only the Fills before it.
func testStreamOrder(t *testing.T, h Harness) {
	r := openRank(t, h)
	b := r.newBuffer(1 << 20)
	gate := r.blockStream(r.stream)
	const writes, bytes = 100, 64
	src := b.addressAt(0)
	dst := func(i byte) uintptr { return b.addressAt(bytes * (1 + int64(i))) } // after src
	for i := range byte(writes) {
		must(t, r.stream.Fill(src, i, bytes))
		must(t, r.stream.Copy(dst(i), src, bytes))
	}

	gate.open()
	must(t, r.stream.Synchronize(r.world.ctx))
	for i := range byte(writes) {
		r.expectFilled(dst(i), i, bytes)
	}
}

func testHostOrder(t *testing.T, h Harness) {
	r := openRank(t, h)
	var order []int
	const callCount = 100
	for i := range callCount {
		must(t, r.stream.Host(func() { order = append(order, i) }))
		if i%10 == 0 { // let the stream become idle
			must(t, r.stream.Synchronize(r.world.ctx))
		}
	}

	must(t, r.stream.Synchronize(r.world.ctx))
	if !slices.Equal(order, numbersBelow(callCount)) {
		t.Errorf("functions ran in the order %v, want the order in which they were queued", order)
	}
}

func testErrorOnce(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{ignoreCloseErrors: true})
	r := w.ranks[0]
	gate := r.blockStream(r.stream)
	must(t, r.queueCall(r.group, r.stream, barrier))
	r.group.Abort(nil)
	gate.open()
	wantError(t, "synchronizing", r.stream.Synchronize(w.ctx), driver.ErrAborted)
	hasRun := false
	must(t, r.stream.Host(func() { hasRun = true }))
	must(t, r.stream.Synchronize(w.ctx))
	if !hasRun {
		t.Error("the stream did not run work after Synchronize had returned the error")
	}
}

func testSynchronizeContext(t *testing.T, h Harness) {
	r := openRank(t, h)
	must(t, r.stream.Synchronize(r.world.ctx)) // while the stream is idle
	gate := r.blockStream(r.stream)
	ctx, cancel := context.WithCancel(r.world.ctx)
	cancel()
	wantError(t, "synchronizing", r.stream.Synchronize(ctx), context.Canceled)
	hasRun := false
	must(t, r.stream.Host(func() { hasRun = true }))
	gate.open()
	must(t, r.stream.Synchronize(r.world.ctx))
	if !hasRun {
		t.Error("the stream did not run work queued after the canceled Synchronize")
	}
}

func testStreamClose(t *testing.T, h Harness) {
	r := openRank(t, h)
	s, err := r.device.NewStream()
	must(t, err)
	gate := r.blockStream(s)
	hasRun := false
	must(t, s.Host(func() { hasRun = true }))
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	gate.open()
	must(t, <-closed)
	if !hasRun {
		t.Error("Close returned before queued work had run")
	}
}

func testStreamClosed(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{}).ranks[0]
	b := r.newBuffer(128)
	e := r.newEvent()
	graph := r.capture(func() { must(t, r.stream.Fill(b.addressAt(0), 1, 1)) })
	plan, err := driver.Prepare(r.group, barrier)
	must(t, err)
	s, err := r.device.NewStream()
	must(t, err)
	must(t, s.Close())
	if _, err := s.EndCapture(); err == nil {
		t.Error("EndCapture of a closed stream succeeded, want an error")
	}

	errs := map[string]error{
		"Copy":              s.Copy(b.addressAt(0), b.addressAt(64), 64),
		"Fill":              s.Fill(b.addressAt(0), 1, 64),
		"Host":              s.Host(func() { t.Error("a closed stream ran a function") }),
		"Record":            s.Record(e),
		"Wait":              s.Wait(e),
		"BeginCapture":      s.BeginCapture(),
		"Launch of a graph": graph.Launch(s),
		"Launch of a plan":  r.group.Launch(s, plan),
	}
	for name, err := range errs {
		wantError(t, name, err, driver.ErrClosed)
	}

	must(t, r.launchAndWait(r.group, r.stream, barrier)) // the group must not have failed
}

func testNegativeSize(t *testing.T, h Harness) {
	r := openRank(t, h)
	b := r.newBuffer(128)
	dst, src := b.addressAt(0), b.addressAt(64)
	const zeroed, value = 0, 1
	if err := r.stream.Copy(dst, src, -1); err == nil {
		t.Error("copying -1 bytes succeeded, want an error")
	}

	if err := r.stream.Fill(dst, value, -1); err == nil {
		t.Error("filling -1 bytes succeeded, want an error")
	}

	must(t, r.stream.Copy(dst, src, 0))
	must(t, r.stream.Fill(dst, value, 0))
	r.expectFilled(dst, zeroed, 64)
}

// blockStream holds up stream s until the gate is opened or the world is closed.
func (r *rank) blockStream(s driver.Stream) *streamGate {
	g := &streamGate{opened: make(chan struct{})}
	r.onClose(func() error {
		g.open()
		return nil
	})
	r.must(s.Host(func() { <-g.opened }))
	return g
}

type streamGate struct {
	opened chan struct{}
	once   sync.Once
}

// open lets the stream continue. It may be called repeatedly.
func (g *streamGate) open() { g.once.Do(func() { close(g.opened) }) }

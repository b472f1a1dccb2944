package drivertest

import (
	"context"
	"slices"
	"testing"

	"symmem/driver"
)

var streamClauses = []clause{
	{"work runs in the order in which it was queued", testStreamOrder},
	{"host functions run in order, even on a busy stream", testHostOrder},
	{"Synchronize returns an error of queued work exactly once", testErrorOnce},
	{"Synchronize returns when its context ends, and the work continues", testSynchronizeContext},
	{"Close waits for queued work", testStreamClose},
	{"a closed stream refuses work", testStreamClosed},
	{"a negative size causes an error", testNegativeSize},
}

func testStreamOrder(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	b := r.newBuffer(1 << 20)
	g := r.block(r.stream)
	const n = 100
	for i := range byte(n) {
		must(t, r.stream.Fill(b.addr(0), i, 64))
		must(t, r.stream.Copy(b.addr(64*(int64(i)+1)), b.addr(0), 64))
	}
	g.open()
	must(t, r.stream.Synchronize(r.world.ctx))
	for i := range byte(n) {
		r.expectAll(b.addr(64*(int64(i)+1)), i, 64)
	}
}

func testHostOrder(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	var ran []int
	const n = 100
	for i := range n {
		must(t, r.stream.Host(func() { ran = append(ran, i) }))
		if i%10 == 0 {
			must(t, r.stream.Synchronize(r.world.ctx))
		}
	}
	must(t, r.stream.Synchronize(r.world.ctx))
	if !slices.Equal(ran, numbers(n)) {
		t.Errorf("functions ran in the order %v, want the order in which they were queued", ran)
	}
}

func testErrorOnce(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{expectFaults: true})
	r := w.ranks[0]
	g := r.block(r.stream)
	must(t, r.queue(r.group, r.stream, driver.Call{Operation: driver.Barrier}))
	r.group.Abort(nil)
	g.open()
	wantError(t, "synchronizing", r.stream.Synchronize(w.ctx), driver.ErrAborted)
	ran := false
	must(t, r.stream.Host(func() { ran = true }))
	must(t, r.stream.Synchronize(w.ctx))
	if !ran {
		t.Error("the stream did not run work after Synchronize had returned the error")
	}
}

func testSynchronizeContext(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	must(t, r.stream.Synchronize(r.world.ctx))
	g := r.block(r.stream)
	ctx, cancel := context.WithCancel(r.world.ctx)
	cancel()
	wantError(t, "synchronizing", r.stream.Synchronize(ctx), context.Canceled)
	ran := false
	must(t, r.stream.Host(func() { ran = true }))
	g.open()
	must(t, r.stream.Synchronize(r.world.ctx))
	if !ran {
		t.Error("the stream did not run work queued after the canceled Synchronize")
	}
}

func testStreamClose(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	s, err := r.device.NewStream()
	must(t, err)
	g := r.block(s)
	ran := false
	must(t, s.Host(func() { ran = true }))
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	g.open()
	must(t, <-closed)
	if !ran {
		t.Error("Close returned before queued work had run")
	}
}

func testStreamClosed(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{}).ranks[0]
	b := r.newBuffer(1)
	e := r.newEvent()
	graph := r.capture(func() { must(t, r.stream.Fill(b.addr(0), 1, 1)) })
	plan, err := driver.Prepare(r.group, driver.Call{Operation: driver.Barrier})
	must(t, err)
	s, err := r.device.NewStream()
	must(t, err)
	must(t, s.Close())
	if _, err := s.EndCapture(); err == nil {
		t.Error("EndCapture succeeded, want an error")
	}
	for call, err := range map[string]error{
		"Copy":              s.Copy(b.addr(0), b.addr(64), 64),
		"Fill":              s.Fill(b.addr(0), 1, 64),
		"Host":              s.Host(func() { t.Error("a closed stream ran a function") }),
		"Record":            s.Record(e),
		"Wait":              s.Wait(e),
		"BeginCapture":      s.BeginCapture(),
		"Launch of a graph": graph.Launch(s),
		"Launch of a plan":  r.group.Launch(s, plan),
	} {
		wantError(t, call, err, driver.ErrClosed)
	}
	must(t, r.launch(r.group, r.stream, driver.Call{Operation: driver.Barrier}))
}

func testNegativeSize(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	b := r.newBuffer(1)
	if r.stream.Copy(b.addr(0), b.addr(64), -1) == nil {
		t.Error("copying -1 bytes succeeded, want an error")
	}
	if r.stream.Fill(b.addr(0), 1, -1) == nil {
		t.Error("filling -1 bytes succeeded, want an error")
	}
	must(t, r.stream.Copy(b.addr(0), b.addr(64), 0))
	must(t, r.stream.Fill(b.addr(0), 1, 0))
	r.expectAll(b.addr(0), 0, 64)
}

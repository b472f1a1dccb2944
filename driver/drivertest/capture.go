package drivertest

import (
	"sync/atomic"
	"testing"

	"symmem/driver"
)

var captureContracts = []contract{
	{"captures neither nest nor end twice", proveCaptureStates},
	{"a capturing stream rejects waits and graph launches", proveRefusedInCapture},
	{"captured work is not done before its graph is launched", proveCapturedWaits},
	{"a graph runs on any stream of its device, in stream order", proveGraphStreams},
	{"an event in a graph is recorded by each launch", proveGraphEvents},
	{"replays and eager calls of one group share one order, 1,000 times", proveReplays},
	{"registration gives ErrCapturing, and the capture is still good", proveRegisterCapturing},
	{"closing a stream ends its capture", proveCloseCapturing},
	{"a closed graph gives ErrClosed", proveGraphClosed},
}

func proveCaptureStates(t *testing.T, h Harness) {
	s := newWorld(t, h, 1, options{apart: true}).ranks[0].stream
	_, err := s.EndCapture()
	wantError(t, "ending without a beginning", err, driver.ErrNotCapturing)
	must(t, s.BeginCapture())
	wantError(t, "beginning twice", s.BeginCapture(), driver.ErrCapturing)
	if !s.Capturing() {
		t.Error("the stream does not capture")
	}
	g, err := s.EndCapture()
	must(t, err)
	if s.Capturing() {
		t.Error("the stream still captures")
	}
	_, err = s.EndCapture()
	wantError(t, "ending twice", err, driver.ErrNotCapturing)
	must(t, g.Launch(s))
	must(t, g.Close())
}

func proveRefusedInCapture(t *testing.T, h Harness) {
	b := newBench(t, h, 1, 1<<20, options{})
	r, m := b.ranks[0], b.send[0]
	must(t, r.stream.Fill(m.at(0), 0, 64))
	must(t, r.stream.Synchronize(b.ctx))
	inner := r.captured(func() { r.ok(r.stream.Fill(m.at(0), 1, 64)) })
	outer := r.captured(func() {
		wantError(t, "waiting for the stream", r.stream.Synchronize(b.ctx), driver.ErrCapturing)
		wantError(t, "launching a graph", inner.Launch(r.stream), driver.ErrCapturing)
		r.ok(r.stream.Fill(m.at(32), 2, 32))
	})
	must(t, inner.Close())
	must(t, outer.Launch(r.stream))
	r.expectAll(m.at(0), 0, 32)
	r.expectAll(m.at(32), 2, 32)
}

func proveCapturedWaits(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{}).ranks[0]
	b := r.newWindow(1)
	ran := 0
	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Int8, Count: 64,
		Send: b.at(0), Recv: b.at(128),
	}
	g := r.captured(func() {
		must(t, r.stream.Fill(b.at(0), 9, 64))
		must(t, r.stream.Copy(b.at(64), b.at(0), 64))
		must(t, r.queue(r.group, r.stream, call))
		must(t, r.stream.Host(func() { ran++ }))
	})
	r.expectAll(b.at(0), 0, 192)
	if ran != 0 {
		t.Error("a captured function ran before launch")
	}
	for range 3 {
		must(t, g.Launch(r.stream))
	}
	r.expectAll(b.at(0), 9, 192)
	if ran != 3 {
		t.Errorf("a function ran %d times in 3 launches", ran)
	}
}

func proveGraphStreams(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	b := r.newBuffer(1)
	g := r.captured(func() { r.ok(r.stream.Copy(b.at(64), b.at(0), 64)) })
	other := r.newStream()
	held := r.hold(other)
	must(t, other.Fill(b.at(0), 5, 64))
	must(t, g.Launch(other))
	must(t, other.Fill(b.at(0), 6, 64))
	r.expectAll(b.at(0), 0, 128)
	held.open()
	must(t, other.Synchronize(r.world.ctx))
	r.expectAll(b.at(0), 6, 64)
	r.expectAll(b.at(64), 5, 64)
}

func proveGraphEvents(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	e := r.newEvent()
	g := r.captured(func() { r.ok(r.stream.Record(e)) })
	if !e.Done() {
		t.Error("capturing has recorded the event")
	}
	for range 3 {
		held := r.hold(r.stream)
		must(t, g.Launch(r.stream))
		if e.Done() {
			t.Error("the event is done before its stream got there")
		}
		held.open()
		must(t, e.Synchronize(r.world.ctx))
	}
}

// proveReplays sums a counter of each rank in a graph and, eagerly between replays, reduces that
// sum again over the other path.
func proveReplays(t *testing.T, h Harness) {
	b := newBench(t, h, 3, 1<<20, options{check: true})
	b.each(func(r *rank) { replay(b, r) })
}

func replay(b *bench, r *rank) {
	const launches = 1000
	send, recv := b.send[r.number], b.recv[r.number]
	sum := func(from, to int64, path driver.Path) driver.Call {
		return r.able(r.group, driver.Call{
			Operation: driver.AllReduce, DataType: driver.Int32, Count: 4000, Path: path,
			Send: send.at(from), Recv: recv.at(to),
			SendWindow: send.window, RecvWindow: recv.window, Digest: uint64(path) + 1,
		})
	}
	var ran atomic.Int32
	paths := b.harness.Paths
	g := r.captured(func() {
		r.ok(r.queue(r.group, r.stream, sum(0, 0, paths[len(paths)-1])))
		r.ok(r.stream.Host(func() { ran.Add(1) }))
	})
	for i := range launches {
		r.at("launch %d", i)
		replayStep(b, r, g, sum(0, 1<<16, paths[0]), i)
	}
	r.ok(r.stream.Synchronize(b.ctx))
	if n := ran.Load(); n != launches {
		r.failf("a function ran %d times in %d launches", n, launches)
	}
}

// replayStep changes the input, launches the graph, makes the eager call every third time and
// checks both results at some steps.
func replayStep(b *bench, r *rank, g driver.Graph, eager driver.Call, i int) {
	value := byte(i%20 + r.number)
	r.ok(r.stream.Fill(b.send[r.number].at(0), value, 16000))
	r.ok(g.Launch(r.stream))
	if i%3 == 0 {
		r.ok(r.queue(r.group, r.stream, eager))
	}
	if i%30 == 0 {
		sum := byte(3*(i%20) + 3)
		r.expectAll(b.recv[r.number].at(0), sum, 16000)
		r.expectAll(b.recv[r.number].at(1<<16), sum, 16000)
	}
}

func proveRegisterCapturing(t *testing.T, h Harness) {
	b := newBench(t, h, 2, 1<<20, options{check: true})
	c := trial{operation: driver.AllReduce, dataType: driver.Float32, count: 5000}
	c.prepare(h, 2)
	b.each(func(r *rank) {
		fresh := r.newBuffer(1)
		call := c.call(r, b.send[r.number], b.recv[r.number])
		r.write(call.Send, c.inputs[r.number])
		key := r.nextKey()
		g := r.captured(func() {
			r.ok(r.queue(r.group, r.stream, call))
			_, err := r.group.Register(b.ctx, key, fresh.segment)
			wantError(t, "registering", err, driver.ErrCapturing)
		})
		r.ok(g.Launch(r.stream))
		r.expect(call.Recv, c.wants[r.number])
		r.ok(g.Close())
		r.register(r.group, key, fresh)
	})
}

func proveCloseCapturing(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{}).ranks[0]
	s, err := r.device.NewStream()
	must(t, err)
	must(t, s.BeginCapture())
	must(t, s.Close())
	r.newWindow(1)
}

func proveGraphClosed(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	g := r.captured(func() {})
	must(t, g.Close())
	wantError(t, "launching", g.Launch(r.stream), driver.ErrClosed)
}

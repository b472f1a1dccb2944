package drivertest

import (
	"sync/atomic"
	"testing"

	"symmem/driver"
)

// A stream that captures does not run its work, but records it in a graph, which can be launched
// many times:
//
//	g := r.capture(func() { r.must(r.stream.Fill(address, 7, 64)) })
//	must(t, g.Launch(r.stream)) // fills 64 bytes with the value 7

var captureRequirements = []requirement{
	{"captures cannot be nested or ended twice", testCaptureStates},
	{"a capturing stream refuses Synchronize and graph launches", testRefusedInCapture},
	{"captured work does not run before its graph is launched", testCapturedWorkWaits},
	{"a graph runs on any stream of its device, in stream order", testGraphStreams},
	{"an event in a graph is recorded by each launch", testGraphEvents},
	{"replayed and other calls of a group run in the order of their launches", testReplays},
	{"Register during a capture returns ErrCapturing and does not end it", testRegisterCapturing},
	{"closing a stream ends its capture", testCloseCapturing},
	{"launching a closed graph returns ErrClosed", testGraphClosed},
}

func testCaptureStates(t *testing.T, h Harness) {
	s := openRank(t, h).stream
	_, err := s.EndCapture()
	wantError(t, "EndCapture without BeginCapture", err, driver.ErrNotCapturing)
	must(t, s.BeginCapture())
	wantError(t, "second BeginCapture", s.BeginCapture(), driver.ErrCapturing)
	if !s.Capturing() {
		t.Error("Capturing() = false during a capture, want true")
	}

	g, err := s.EndCapture()
	must(t, err)
	if s.Capturing() {
		t.Error("Capturing() = true after EndCapture, want false")
	}

	_, err = s.EndCapture()
	wantError(t, "second EndCapture", err, driver.ErrNotCapturing)
	must(t, g.Launch(s))
	must(t, g.Close())
}

// A refused graph launch must not become part of the graph being captured.
func testRefusedInCapture(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 1, 1<<20, options{})
	r, buf := bw.ranks[0], bw.send[0]
	const half = 32 // bytes
	firstHalf, secondHalf := buf.addressAt(0), buf.addressAt(half)
	const oldValue, refusedValue, capturedValue = 0, 1, 2
	must(t, r.stream.Fill(firstHalf, oldValue, 2*half))
	must(t, r.stream.Synchronize(bw.ctx))
	refusedGraph := r.capture(func() { must(t, r.stream.Fill(firstHalf, refusedValue, 2*half)) })
	graph := r.capture(func() {
		syncErr := r.stream.Synchronize(bw.ctx)
		wantError(t, "synchronizing the stream", syncErr, driver.ErrCapturing)
		launchErr := refusedGraph.Launch(r.stream)
		wantError(t, "launching a graph", launchErr, driver.ErrCapturing)
		must(t, r.stream.Fill(secondHalf, capturedValue, half))
	})
	must(t, refusedGraph.Close())
	must(t, graph.Launch(r.stream))
	r.expectFilled(firstHalf, oldValue, half)
	r.expectFilled(secondHalf, capturedValue, half)
}

func testCapturedWorkWaits(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{}).ranks[0]
	const partBytes, allBytes = 64, 3 * 64
	b := r.newWindow(allBytes)
	filled := b.addressAt(0)
	copied := b.addressAt(partBytes)
	summed := b.addressAt(2 * partBytes)
	runCount := 0
	sumOfOneRank := driver.Call{ // copies its input
		Operation: driver.AllReduce, DataType: driver.Int8, Count: partBytes,
		Send: filled, Recv: summed,
	}
	const zeroed, value = 0, 9
	g := r.capture(func() {
		must(t, r.stream.Fill(filled, value, partBytes))
		must(t, r.stream.Copy(copied, filled, partBytes))
		must(t, r.queueCall(r.group, r.stream, sumOfOneRank))
		must(t, r.stream.Host(func() { runCount++ }))
	})
	r.expectFilled(filled, zeroed, allBytes)
	if runCount != 0 {
		t.Error("a captured function ran before its graph was launched")
	}

	for range 3 {
		must(t, g.Launch(r.stream))
	}

	r.expectFilled(filled, value, allBytes) // waits for the launches
	if runCount != 3 {
		t.Errorf("a captured function ran %d times in 3 launches", runCount)
	}
}

// testGraphStreams launches a captured Copy between two Fills of its source. The Copy must see only
// the first Fill.
func testGraphStreams(t *testing.T, h Harness) {
	r := openRank(t, h)
	const size = 64
	b := r.newBuffer(2 * size)
	src, dst := b.addressAt(0), b.addressAt(size)
	g := r.capture(func() { must(t, r.stream.Copy(dst, src, size)) })
	other := r.newStream()
	gate := r.blockStream(other)
	const zeroed, first, second = 0, 5, 6
	must(t, other.Fill(src, first, size))
	must(t, g.Launch(other))
	must(t, other.Fill(src, second, size))
	r.expectFilled(src, zeroed, size)
	r.expectFilled(dst, zeroed, size)
	gate.open()
	must(t, other.Synchronize(r.world.ctx))
	r.expectFilled(src, second, size)
	r.expectFilled(dst, first, size)
}

// A captured Record takes effect only when the graph is launched.
func testGraphEvents(t *testing.T, h Harness) {
	r := openRank(t, h)
	e := r.newEvent()
	g := r.capture(func() { must(t, r.stream.Record(e)) })
	if !e.Done() {
		t.Error("a captured Record made the event pending before the graph was launched")
	}

	for range 3 {
		gate := r.blockStream(r.stream)
		must(t, g.Launch(r.stream))
		if e.Done() {
			t.Error("the event is done before its stream reached it")
		}

		gate.open()
		must(t, e.Synchronize(r.world.ctx))
	}
}

// testReplays computes the same sums with a graph and with uncaptured calls on one stream, if
// possible on different paths. A path is an algorithm of the backend.
func testReplays(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 3, 1<<20, options{checkCalls: true})
	bw.onEachRank(func(r *rank) { checkReplays(bw, r) })
}

const (
	sumCount         = 4000 // elements of type int32
	sumBytes         = 4 * sumCount
	uncapturedOffset = 1 << 16 // bytes before the uncaptured calls' sums in the receive buffer
)

func checkReplays(bw *bufferWorld, r *rank) {
	const launches = 1000
	send, recv := bw.send[r.number], bw.recv[r.number]
	sumCall := func(path driver.Path, recvOffset int64) driver.Call {
		return r.onSupportedPath(r.group, driver.Call{
			Operation: driver.AllReduce, DataType: driver.Int32, Count: sumCount, Path: path,
			Send: send.addressAt(0), Recv: recv.addressAt(recvOffset),
			SendWindow: send.window, RecvWindow: recv.window,
			Digest: uint64(path) + 1,
		})
	}
	paths := bw.harness.Paths
	captured := sumCall(paths[len(paths)-1], 0)
	uncaptured := sumCall(paths[0], uncapturedOffset)
	var runCount atomic.Int32
	g := r.capture(func() {
		r.must(r.queueCall(r.group, r.stream, captured))
		r.must(r.stream.Host(func() { runCount.Add(1) }))
	})
	for i := range launches {
		r.setStep("launch %d", i)
		replayStep(bw, r, g, uncaptured, i)
	}

	r.must(r.stream.Synchronize(bw.ctx))
	if n := runCount.Load(); n != launches {
		r.failf("a captured function ran %d times in %d launches", n, launches)
	}
}

// replayStep fills the send buffer and launches g. Every third step also queues the uncaptured
// call, and every 30th step then checks both results.
func replayStep(bw *bufferWorld, r *rank, g driver.Graph, uncaptured driver.Call, i int) {
	send, recv := bw.send[r.number], bw.recv[r.number]
	base := byte(i % 20)
	r.must(r.stream.Fill(send.addressAt(0), base+byte(r.number), sumBytes))
	r.must(g.Launch(r.stream))
	if i%3 == 0 {
		r.must(r.queueCall(r.group, r.stream, uncaptured))
	}

	if i%30 == 0 {
		sum := base + (base + 1) + (base + 2) // in each byte; at most 60, so there is no carry
		r.expectFilled(recv.addressAt(0), sum, sumBytes)
		r.expectFilled(recv.addressAt(uncapturedOffset), sum, sumBytes)
	}
}

func testRegisterCapturing(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true})
	tr := trial{operation: driver.AllReduce, dataType: driver.Float32, count: 5000}
	tr.prepare(h, 2)
	bw.onEachRank(func(r *rank) {
		unregistered := r.newBuffer(1)
		call := tr.call(r, bw.send[r.number], bw.recv[r.number])
		r.write(call.Send, tr.inputs[r.number])
		key := r.nextKey()
		g := r.capture(func() {
			r.must(r.queueCall(r.group, r.stream, call))
			_, err := r.group.Register(bw.ctx, key, unregistered.segment)
			wantError(t, "registering", err, driver.ErrCapturing)
		})
		r.must(g.Launch(r.stream))
		r.expectBytes(call.Recv, tr.wantResults[r.number])
		r.must(g.Close())
		r.register(r.group, key, unregistered) // the refused call must not use up the key
	})
}

func testCloseCapturing(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{}).ranks[0]
	s, err := r.device.NewStream()
	must(t, err)
	must(t, s.BeginCapture())
	must(t, s.Close())
	r.newWindow(1) // would fail during a capture
}

func testGraphClosed(t *testing.T, h Harness) {
	r := openRank(t, h)
	g := r.capture(func() {})
	must(t, g.Close())
	wantError(t, "launching", g.Launch(r.stream), driver.ErrClosed)
}

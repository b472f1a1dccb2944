package drivertest

import (
	"sync/atomic"
	"testing"

	"symmem/driver"
)

// Between BeginCapture and EndCapture, a stream does not run its work, but captures it in a graph.
// The graph can then be launched many times, on any stream of the device. For example:
//
//	g := r.capture(func() { r.must(r.stream.Fill(address, 7, 64)) })
//	must(t, g.Launch(r.stream)) // fills 64 bytes with the value 7
//
// newWorld opens ranks, each with a device, a stream and a group of all ranks. r.blockStream queues
// a gate on a stream. The stream stops there until the test opens the gate.

var captureRequirements = []requirement{
	{"captures cannot be nested or ended twice", testCaptureStates},
	{"a capturing stream refuses Synchronize and graph launches", testRefusedInCapture},
	{"captured work does not run before its graph is launched", testCapturedWaits},
	{"a graph runs on any stream of its device, in stream order", testGraphStreams},
	{"an event in a graph is recorded by each launch", testGraphEvents},
	{"replayed and other calls of a group run in the order of their launches", testReplays},
	{"Register during a capture returns ErrCapturing and does not end it", testRegisterCapturing},
	{"closing a stream ends its capture", testCloseCapturing},
	{"launching a closed graph returns ErrClosed", testGraphClosed},
}

func testCaptureStates(t *testing.T, h Harness) {
	s := newWorld(t, h, 1, options{noGroup: true}).ranks[0].stream
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

// testRefusedInCapture makes two calls that a capturing stream refuses, and then a Fill. Only the
// Fill is part of the graph.
func testRefusedInCapture(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 1, 1<<20, options{})
	r, buf := bw.ranks[0], bw.send[0]
	const before, inner, outer = 0, 1, 2 // values that the steps of the test write
	must(t, r.stream.Fill(buf.addressAt(0), before, 64))
	must(t, r.stream.Synchronize(bw.ctx))
	innerGraph := r.capture(func() { r.must(r.stream.Fill(buf.addressAt(0), inner, 64)) })
	outerGraph := r.capture(func() {
		syncErr := r.stream.Synchronize(bw.ctx)
		wantError(t, "synchronizing the stream", syncErr, driver.ErrCapturing)
		launchErr := innerGraph.Launch(r.stream)
		wantError(t, "launching a graph", launchErr, driver.ErrCapturing)
		r.must(r.stream.Fill(buf.addressAt(32), outer, 32))
	})
	must(t, innerGraph.Close())
	must(t, outerGraph.Launch(r.stream))
	r.expectFilled(buf.addressAt(0), before, 32) // not inner
	r.expectFilled(buf.addressAt(32), outer, 32)
}

// testCapturedWaits captures a Fill, a Copy, a sum and a function. The first three write adjacent
// parts of a buffer: with one rank, the sum is equal to its input. The function counts its runs.
func testCapturedWaits(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{}).ranks[0]
	b := r.newWindow(1)
	const partBytes = 64
	filled := b.addressAt(0)
	copied := b.addressAt(partBytes)
	summed := b.addressAt(2 * partBytes)
	runCount := 0
	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Int8, Count: partBytes,
		Send: filled, Recv: summed,
	}
	const before, after = 0, 9 // values of the three parts
	g := r.capture(func() {
		must(t, r.stream.Fill(filled, after, partBytes))
		must(t, r.stream.Copy(copied, filled, partBytes))
		must(t, r.queueCall(r.group, r.stream, call))
		must(t, r.stream.Host(func() { runCount++ }))
	})
	r.expectFilled(filled, before, 3*partBytes)
	if runCount != 0 {
		t.Error("a captured function ran before its graph was launched")
	}

	for range 3 {
		must(t, g.Launch(r.stream))
	}

	r.expectFilled(filled, after, 3*partBytes) // waits for the launches
	if runCount != 3 {
		t.Errorf("a captured function ran %d times in 3 launches", runCount)
	}
}

// testGraphStreams captures a Copy on one stream, and launches the graph on another, between two
// writes of the copied memory. The Copy must copy the first value.
func testGraphStreams(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	b := r.newBuffer(1)
	src, dst := b.addressAt(0), b.addressAt(64)
	g := r.capture(func() { r.must(r.stream.Copy(dst, src, 64)) })
	other := r.newStream()
	gate := r.blockStream(other)
	const before, first, second = 0, 5, 6 // values of the source
	must(t, other.Fill(src, first, 64))
	must(t, g.Launch(other))
	must(t, other.Fill(src, second, 64))
	r.expectFilled(src, before, 128) // src and dst, which are adjacent
	gate.open()
	must(t, other.Synchronize(r.world.ctx))
	r.expectFilled(src, second, 64)
	r.expectFilled(dst, first, 64)
}

// testGraphEvents captures the Record of an event. Until the first launch, the event must stay
// done, as one that has never been recorded.
func testGraphEvents(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	e := r.newEvent()
	g := r.capture(func() { r.must(r.stream.Record(e)) })
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

// testReplays launches a graph that sums the ranks' values on the backend's last path, that is, in
// the last way in which it can run calls. In between, it computes the same sums without a graph, on
// the first path.
func testReplays(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 3, 1<<20, options{checkCalls: true})
	bw.onEachRank(func(r *rank) { checkReplays(bw, r) })
}

// The sums of testReplays.
const (
	replayedCount    = 4000              // number of int32 elements
	replayedBytes    = 4 * replayedCount // size of the elements
	uncapturedOffset = 1 << 16           // of the sums without a graph, in the receive buffer
)

func checkReplays(bw *bufferWorld, r *rank) {
	const launches = 1000
	send, recv := bw.send[r.number], bw.recv[r.number]
	sumCall := func(path driver.Path, recvOffset int64) driver.Call {
		return r.onSupportedPath(r.group, driver.Call{
			Operation: driver.AllReduce, DataType: driver.Int32, Count: replayedCount, Path: path,
			Send: send.addressAt(0), Recv: recv.addressAt(recvOffset),
			SendWindow: send.window, RecvWindow: recv.window, Digest: uint64(path) + 1,
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

// replayStep writes new values and launches g. In every third step, it also makes the uncaptured
// call. In every 30th step, it checks the results of both.
func replayStep(bw *bufferWorld, r *rank, g driver.Graph, uncaptured driver.Call, i int) {
	send, recv := bw.send[r.number], bw.recv[r.number]
	value := byte(i%20 + r.number) // of each byte
	r.must(r.stream.Fill(send.addressAt(0), value, replayedBytes))
	r.must(g.Launch(r.stream))
	if i%3 == 0 {
		r.must(r.queueCall(r.group, r.stream, uncaptured))
	}

	if i%30 == 0 {
		// The ranks 0, 1 and 2 have the values v, v+1 and v+2, where v is i%20. No byte overflows.
		sum := byte(3*(i%20) + 3)
		r.expectFilled(recv.addressAt(0), sum, replayedBytes)
		r.expectFilled(recv.addressAt(uncapturedOffset), sum, replayedBytes)
	}
}

// testRegisterCapturing captures a call, and tries to register memory during the capture. Then the
// graph must work, and the memory can be registered.
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
		r.register(r.group, key, unregistered)
	})
}

// testCloseCapturing closes a stream during its capture. Then memory can be registered, which is
// not possible during a capture.
func testCloseCapturing(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{}).ranks[0]
	s, err := r.device.NewStream()
	must(t, err)
	must(t, s.BeginCapture())
	must(t, s.Close())
	r.newWindow(1) // registers memory
}

func testGraphClosed(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	g := r.capture(func() {})
	must(t, g.Close())
	wantError(t, "launching", g.Launch(r.stream), driver.ErrClosed)
}

package drivertest

import (
	"slices"
	"testing"

	"symmem/driver"
)

// If all ranks of a group register a segment of device memory under the same key, they create a
// window, through which each rank can access all of these segments. Calls on PathWindow require it.

var windowRequirements = []requirement{
	{"a segment can be registered, deregistered and registered again", testReregister},
	{"deregistering twice returns ErrClosed", testDeregisterTwice},
	{"registering a key twice causes an error without side effects", testRegisterTwice},
	{"preparing a call without a window returns ErrOutOfRange", testNoWindow},
	{"segments of different sizes cause an error on all ranks", testSizesDiffer},
	{"several groups can register the same segment", testTwoGroups},
	{"a group can have many windows", testManyWindows},
}

func testReregister(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		b := r.newBuffer(1)
		first, second := r.nextKey(), r.nextKey()
		for _, key := range []driver.SegmentKey{first, first, second, second, r.nextKey()} {
			b.window = r.register(r.group, key, b)
			checkWindow(r, r.group, b)
			r.must(b.window.Deregister())
		}
	})
}

func testDeregisterTwice(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{})
	w.onEachRank(func(r *rank) {
		b := r.newWindow(1)
		r.must(b.window.Deregister())
		wantError(t, "deregistering again", b.window.Deregister(), driver.ErrClosed)
	})
}

func testRegisterTwice(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		b := r.newBuffer(1)
		key := r.nextKey()
		b.window = r.register(r.group, key, b)
		if _, err := r.group.Register(w.ctx, key, b.segment); err == nil {
			r.failf("registering twice succeeded, want an error")
		}

		checkWindow(r, r.group, b) // the first registration is still usable
	})
}

func testNoWindow(t *testing.T, h Harness) {
	if !slices.Contains(h.Paths, driver.PathWindow) {
		t.Skip("the backend has no window path")
	}

	bw := newBufferWorld(t, h, 2, 1<<20, options{})
	send, recv := bw.send[0], bw.recv[0]
	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: 256, Path: driver.PathWindow,
		Send: send.addressAt(0), Recv: recv.addressAt(0),
	}
	group := bw.ranks[0].group
	noSendWindow, noRecvWindow := call, call
	noSendWindow.RecvWindow = recv.window
	_, err := driver.Prepare(group, noSendWindow)
	wantError(t, "no send window", err, driver.ErrOutOfRange)
	noRecvWindow.SendWindow = send.window
	_, err = driver.Prepare(group, noRecvWindow)
	wantError(t, "no receive window", err, driver.ErrOutOfRange)
}

func testSizesDiffer(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		bytes := r.granularity()
		if r.number == 1 {
			bytes *= 2
		}

		unequal := r.newBuffer(bytes)
		key := r.nextKey()
		if _, err := r.group.Register(w.ctx, key, unequal.segment); err == nil {
			r.failf("registering segments of different sizes succeeded, want an error")
		}

		b := r.newBuffer(1)
		b.window = r.register(r.group, key, b) // the failed call must not use up the key
		checkWindow(r, r.group, b)
	})
}

func testTwoGroups(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		secondGroup := r.connect(driver.GroupConfig{ID: "second", Ranks: []int{1, 0}, Check: true})
		key := r.nextKey() // each group has its own keys
		b := r.newBuffer(1)
		first := buffer{segment: b.segment, window: r.register(r.group, key, b)}
		second := buffer{segment: b.segment, window: r.register(secondGroup, key, b)}
		checkWindow(r, r.group, first)
		checkWindow(r, secondGroup, second)
		_, err := driver.Prepare(secondGroup, driver.Call{
			Operation: driver.AllReduce, DataType: driver.Int8, Count: 1, Path: driver.PathWindow,
			Send: b.addressAt(0), Recv: b.addressAt(0),
			SendWindow: first.window, RecvWindow: first.window,
		})
		if err == nil {
			r.failf("preparing a call with another group's window succeeded, want an error")
		}

		r.must(first.window.Deregister())
		checkWindow(r, secondGroup, second)
	})
}

func testManyWindows(t *testing.T, h Harness) {
	const windowCount = 100
	w := newWorld(t, h, 2, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		var buffers []buffer
		for range windowCount {
			buffers = append(buffers, r.newWindow(1))
		}

		for i, b := range buffers {
			r.setStep("window %d", i)
			checkWindow(r, r.group, b)
		}

		for i, b := range buffers {
			r.setStep("window %d", i)
			r.must(b.window.Deregister())
		}
	})
}

// checkWindow computes a maximum of equal bytes in b.window. It does nothing if the backend has no
// window path.
func checkWindow(r *rank, c driver.Communicator, b buffer) {
	if !slices.Contains(r.world.harness.Paths, driver.PathWindow) {
		return
	}

	const count = 20000
	const gap = 96 // bytes between input and output
	input, output := b.addressAt(0), b.addressAt(count+gap)
	r.checkedWindows++
	value := byte(r.checkedWindows) // the same on all ranks
	r.must(r.stream.Fill(input, value, count))
	call := r.onSupportedPath(c, driver.Call{
		Operation: driver.AllReduce, DataType: driver.Uint8, ReduceOp: driver.Max, Count: count,
		Path: driver.PathWindow, Send: input, Recv: output,
		SendWindow: b.window, RecvWindow: b.window, Digest: commonDigest,
	})
	r.must(r.launchAndWait(c, r.stream, call))
	r.expectFilled(output, value, count)
}

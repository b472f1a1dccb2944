package drivertest

import (
	"slices"
	"testing"

	"symmem/driver"
)

// The ranks of a group register their segments of device memory under a common key. The result is a
// window, through which all ranks can access these segments. Calls on PathWindow require it.
//
// newWorld opens n ranks with a group. r.checkMaximum checks that a window is usable.

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
		for i, ordinal := range []uint32{3, 3, 4, 4, 5} { // new keys and used ones
			key := driver.SegmentKey{Pool: keyPool, Ordinal: ordinal}
			b.window = r.register(r.group, key, b)
			r.checkMaximum(r.group, b, byte(i+1))
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

		r.checkMaximum(r.group, b, 3) // the first registration is still usable
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
		Send: send.addressAt(0), Recv: recv.addressAt(0), SendWindow: send.window,
		RecvWindow: recv.window,
	}
	withoutSend, withoutRecv := call, call
	withoutSend.SendWindow = nil
	withoutRecv.RecvWindow = nil
	group := bw.ranks[0].group
	_, err := driver.Prepare(group, withoutSend)
	wantError(t, "no send window", err, driver.ErrOutOfRange)
	_, err = driver.Prepare(group, withoutRecv)
	wantError(t, "no receive window", err, driver.ErrOutOfRange)
}

func testSizesDiffer(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		bytes := r.granularity()
		if r.number == 1 {
			bytes *= 2
		}

		mismatched := r.newBuffer(bytes)
		key := r.nextKey()
		if _, err := r.group.Register(w.ctx, key, mismatched.segment); err == nil {
			r.failf("registering segments of different sizes succeeded, want an error")
		}

		b := r.newBuffer(1)
		b.window = r.register(r.group, key, b) // the failed call has not used the key
		r.checkMaximum(r.group, b, 8)
	})
}

func testTwoGroups(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		secondGroup := r.connect("second", []int{1, 0}, checkingCalls)
		key := r.nextKey() // the same in both groups
		b := r.newBuffer(1)
		b.window = r.register(r.group, key, b)
		bufferInSecond := buffer{segment: b.segment}
		bufferInSecond.window = r.register(secondGroup, key, b)
		r.checkMaximum(r.group, b, 1)
		r.checkMaximum(secondGroup, bufferInSecond, 2)
		_, err := driver.Prepare(secondGroup, driver.Call{
			Operation: driver.AllReduce, Count: 1, Path: driver.PathWindow,
			Send: b.addressAt(0), Recv: b.addressAt(0), SendWindow: b.window, RecvWindow: b.window,
		})
		if err == nil {
			r.failf("preparing a call with another group's window succeeded, want an error")
		}

		r.must(b.window.Deregister()) // does not affect the second group
		r.checkMaximum(secondGroup, bufferInSecond, 3)
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
			r.checkMaximum(r.group, b, byte(i+1))
		}

		for i, b := range buffers {
			r.setStep("window %d", i)
			r.must(b.window.Deregister())
		}
	})
}

package drivertest

import (
	"slices"
	"testing"

	"symmem/driver"
)

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
		for round := range uint32(5) {
			key := driver.SegmentKey{Pool: 1, Ordinal: 3 + round/2} // each key for two rounds
			b.window = r.register(r.group, key, b)
			r.checkSum(r.group, b, byte(round+1))
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
		r.checkSum(r.group, b, 3)
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
	for name, change := range map[string]func(*driver.Call){
		"no send window":    func(c *driver.Call) { c.SendWindow = nil },
		"no receive window": func(c *driver.Call) { c.RecvWindow = nil },
	} {
		c := call
		change(&c)
		_, err := driver.Prepare(bw.ranks[0].group, c)
		wantError(t, name, err, driver.ErrOutOfRange)
	}
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
		b.window = r.register(r.group, key, b) // the key is still free after the failed call
		r.checkSum(r.group, b, 8)
	})
}

func testTwoGroups(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		secondGroup := r.connect("second", []int{1, 0}, checkingCalls)
		b := r.newWindow(1)
		bufferInSecond := b
		key := driver.SegmentKey{Pool: keyPool, Ordinal: r.keyCount} // the last result of nextKey
		bufferInSecond.window = r.register(secondGroup, key, b)
		r.checkSum(r.group, b, 1)
		r.checkSum(secondGroup, bufferInSecond, 2)
		_, err := driver.Prepare(secondGroup, driver.Call{
			Operation: driver.AllReduce, Count: 1, Path: driver.PathWindow,
			Send: b.addressAt(0), Recv: b.addressAt(0), SendWindow: b.window, RecvWindow: b.window,
		})
		if err == nil {
			r.failf("preparing a call with another group's window succeeded, want an error")
		}
		r.must(b.window.Deregister())
		r.checkSum(secondGroup, bufferInSecond, 3)
	})
}

func testManyWindows(t *testing.T, h Harness) {
	const n = 100
	w := newWorld(t, h, 2, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		var buffers []buffer
		for range n {
			buffers = append(buffers, r.newWindow(1))
		}
		for i, b := range buffers {
			r.setStep("window %d", i)
			r.checkSum(r.group, b, byte(i+1))
		}
		for i, b := range buffers {
			r.setStep("window %d", i)
			r.must(b.window.Deregister())
		}
	})
}

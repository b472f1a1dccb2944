package drivertest

import (
	"testing"

	"symmem/driver"
)

var suspendRequirements = []requirement{
	{"a resumed segment has zeros at its old address", testResumedZeros},
	{"a resumed segment has the contents that were saved", testResumedContents},
	{"a suspended segment can be unmapped, and its addresses reused", testUnmapSuspended},
	{"suspending twice returns ErrSuspended", testSuspendTwice},
	{"windows and graphs work after many cycles", testSuspendCycles},
	{"a suspended window can be deregistered", testDeregisterSuspended},
}

func asSuspendable(r *rank, s driver.Segment) driver.SuspendableSegment {
	segment, ok := s.(driver.SuspendableSegment)
	if !ok {
		r.failf("the backend's segments cannot be suspended")
	}
	return segment
}

func suspendSegment(r *rank, s driver.Segment, save bool) driver.SuspendableSegment {
	segment := asSuspendable(r, s)
	r.must(segment.PrepareSuspend(save))
	r.must(segment.Suspend())
	return segment
}

func testResumedZeros(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	b := r.newBuffer(2 * r.granularity())
	for range 3 {
		address, bytes := b.segment.Address(), b.segment.Bytes()
		r.must(r.stream.Fill(address, 0xFF, bytes))
		r.must(r.stream.Synchronize(r.world.ctx))
		r.must(suspendSegment(r, b.segment, false).Resume())
		if got := b.segment.Address(); got != address {
			t.Errorf("Address() = %#x after Resume, want %#x", got, address)
		}
		r.expectFilled(address, 0, bytes)
	}
}

func testResumedContents(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	b := r.newBuffer(2 * r.granularity())
	for round := range byte(3) {
		r.must(r.stream.Fill(b.addressAt(0), round+1, b.segment.Bytes()))
		r.must(r.stream.Synchronize(r.world.ctx))
		r.must(suspendSegment(r, b.segment, true).Resume())
		r.expectFilled(b.addressAt(0), round+1, b.segment.Bytes())
	}
	// Resume does not restore the saved contents of a segment that is not suspended.
	r.must(asSuspendable(r, b.segment).PrepareSuspend(true))
	r.must(r.stream.Fill(b.addressAt(0), 9, b.segment.Bytes()))
	r.must(r.stream.Synchronize(r.world.ctx))
	r.must(asSuspendable(r, b.segment).Resume())
	r.expectFilled(b.addressAt(0), 9, b.segment.Bytes())
}

func testUnmapSuspended(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	for range 3 {
		s, err := r.arena.Map(0, r.granularity())
		must(t, err)
		r.expectFilled(s.Address(), 0, r.granularity())
		must(t, r.stream.Fill(s.Address(), 1, r.granularity()))
		must(t, r.stream.Synchronize(r.world.ctx))
		segment := suspendSegment(r, s, true)
		must(t, s.Unmap())
		wantError(t, "resuming an unmapped segment", segment.Resume(), driver.ErrClosed)
	}
}

func testSuspendTwice(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	segment := suspendSegment(r, r.newBuffer(1).segment, false)
	wantError(t, "preparing again", segment.PrepareSuspend(false), driver.ErrSuspended)
	wantError(t, "suspending again", segment.Suspend(), driver.ErrSuspended)
	must(t, segment.Resume())
	must(t, segment.Resume())
}

// suspendWindow suspends a buffer's window and segment on all ranks.
func suspendWindow(r *rank, b buffer) {
	w := b.window.(driver.SuspendableWindow)
	r.must(w.PrepareSuspend())
	waitForAll(r)
	r.must(w.Suspend())
	suspendSegment(r, b.segment, false)
	waitForAll(r)
}

func resumeWindow(r *rank, b buffer) {
	r.must(asSuspendable(r, b.segment).Resume())
	waitForAll(r)
	r.must(b.window.(driver.SuspendableWindow).Resume(r.world.ctx))
}

func waitForAll(r *rank) {
	_, err := r.group.Exchange(r.world.ctx, driver.LaneControl, nil)
	r.must(err)
}

func testSuspendCycles(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		const count = 20000
		b := r.newWindow(2*count + 96)
		call := onCapturablePath(r, driver.Call{
			Operation: driver.AllReduce, DataType: driver.Uint8, ReduceOp: driver.Max, Count: count,
			Send: b.addressAt(0), Recv: b.addressAt(count + 96), SendWindow: b.window,
			RecvWindow: b.window,
			Digest:     1,
		})
		plan, err := driver.Prepare(r.group, call)
		r.must(err)
		g := r.capture(func() { r.must(r.group.Launch(r.stream, plan)) })
		for round := range byte(10) {
			r.setStep("cycle %d", round)
			suspendWindow(r, b)
			resumeWindow(r, b)
			r.must(r.stream.Fill(b.addressAt(0), 10*round+byte(r.number), count))
			r.must(g.Launch(r.stream))
			r.must(r.stream.Synchronize(w.ctx))
			r.expectFilled(b.addressAt(count+96), 10*round+2, count)
		}
		r.checkSum(r.group, b, 77)
	})
}

// onCapturablePath returns call on a path whose graphs survive a suspension.
func onCapturablePath(r *rank, call driver.Call) driver.Call {
	for _, path := range []driver.Path{driver.PathDirect, driver.PathWindow, driver.PathPlain} {
		if call.Path = path; r.group.Offer(call).Refusal(path) == nil {
			break
		}
	}
	return call
}

func testDeregisterSuspended(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		b := r.newWindow(1)
		suspendWindow(r, b)
		r.must(b.window.Deregister())
		r.must(asSuspendable(r, b.segment).Resume())
		b.window = r.register(r.group, r.nextKey(), b)
		r.checkSum(r.group, b, 5)
	})
}

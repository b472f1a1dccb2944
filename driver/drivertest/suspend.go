package drivertest

import (
	"testing"

	"symmem/driver"
)

// Suspending a segment releases its device memory and keeps its address. Resuming it maps new
// memory, which contains zeros or the data that PrepareSuspend saved.
//
// A window gives the ranks of a group access to each other's segments. It must be suspended before
// its segments and resumed after them.

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

// Arguments of PrepareSuspend.
const (
	saveContents    = true
	discardContents = false
)

// suspendSegment suspends s, and returns it for Resume.
func suspendSegment(r *rank, s driver.Segment, save bool) driver.SuspendableSegment {
	segment := asSuspendable(r, s)
	r.must(segment.PrepareSuspend(save))
	r.must(segment.Suspend())
	return segment
}

func testResumedZeros(t *testing.T, h Harness) {
	r := openRank(t, h)
	b := r.newBuffer(2 * r.granularity())
	for range 3 {
		address, bytes := b.segment.Address(), b.segment.Bytes()
		must(t, r.stream.Fill(address, 0xFF, bytes))
		must(t, r.stream.Synchronize(r.world.ctx))
		segment := suspendSegment(r, b.segment, discardContents)
		must(t, segment.Resume())
		if got := b.segment.Address(); got != address {
			t.Errorf("Address() = %#x after Resume, want %#x", got, address)
		}

		r.expectFilled(address, 0, bytes)
	}
}

func testResumedContents(t *testing.T, h Harness) {
	r := openRank(t, h)
	b := r.newBuffer(2 * r.granularity())
	address, bytes := b.segment.Address(), b.segment.Bytes()
	for _, value := range []byte{1, 2, 3} {
		must(t, r.stream.Fill(address, value, bytes))
		must(t, r.stream.Synchronize(r.world.ctx))
		segment := suspendSegment(r, b.segment, saveContents)
		must(t, segment.Resume())
		r.expectFilled(address, value, bytes)
	}

	// Without Suspend, Resume keeps the current contents.
	segment := asSuspendable(r, b.segment)
	must(t, segment.PrepareSuspend(saveContents))
	const laterValue = 9
	must(t, r.stream.Fill(address, laterValue, bytes))
	must(t, r.stream.Synchronize(r.world.ctx))
	must(t, segment.Resume())
	r.expectFilled(address, laterValue, bytes)
}

func testUnmapSuspended(t *testing.T, h Harness) {
	r := openRank(t, h)
	for range 3 {
		const offset, zeroed, saved = 0, 0, 1
		s, err := r.arena.Map(offset, r.granularity())
		must(t, err)
		r.expectFilled(s.Address(), zeroed, r.granularity())
		must(t, r.stream.Fill(s.Address(), saved, r.granularity()))
		must(t, r.stream.Synchronize(r.world.ctx))
		segment := suspendSegment(r, s, saveContents)
		must(t, s.Unmap())
		wantError(t, "resuming an unmapped segment", segment.Resume(), driver.ErrClosed)
	}
}

func testSuspendTwice(t *testing.T, h Harness) {
	r := openRank(t, h)
	b := r.newBuffer(1)
	segment := suspendSegment(r, b.segment, discardContents)
	prepareErr := segment.PrepareSuspend(discardContents)
	wantError(t, "preparing again", prepareErr, driver.ErrSuspended)
	wantError(t, "suspending again", segment.Suspend(), driver.ErrSuspended)
	must(t, segment.Resume())
	must(t, segment.Resume()) // has no effect
}

// suspendWindow suspends a buffer's window, and then its segment. All ranks must call it.
func suspendWindow(r *rank, b buffer) {
	w := b.window.(driver.SuspendableWindow)
	r.must(w.PrepareSuspend())
	waitForAll(r) // all ranks prepare before one suspends
	r.must(w.Suspend())
	suspendSegment(r, b.segment, discardContents)
	waitForAll(r) // all segments are suspended before one is resumed
}

// resumeWindow resumes a buffer's segment, and then its window. All ranks must call it.
func resumeWindow(r *rank, b buffer) {
	r.must(asSuspendable(r, b.segment).Resume())
	waitForAll(r) // the window needs all segments
	w := b.window.(driver.SuspendableWindow)
	r.must(w.Resume(r.world.ctx))
}

// waitForAll waits until all ranks have called it.
func waitForAll(r *rank) {
	_, err := r.group.Exchange(r.world.ctx, driver.LaneControl, nil)
	r.must(err)
}

// testSuspendCycles launches a graph after each suspension and resumption of its window.
func testSuspendCycles(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		const count = 20000
		const gap = 96 // bytes between input and output
		b := r.newWindow(2*count + gap)
		input, output := b.addressAt(0), b.addressAt(count+gap)
		call := preferDirectPath(r, driver.Call{
			Operation: driver.AllReduce, DataType: driver.Uint8, ReduceOp: driver.Max, Count: count,
			Send: input, Recv: output, SendWindow: b.window, RecvWindow: b.window, Digest: commonDigest,
		})
		plan, err := driver.Prepare(r.group, call)
		r.must(err)
		g := r.capture(func() { r.must(r.group.Launch(r.stream, plan)) })
		for cycle := range byte(10) {
			r.setStep("cycle %d", cycle)
			suspendWindow(r, b)
			resumeWindow(r, b)
			value := 10*cycle + byte(r.number)
			r.must(r.stream.Fill(input, value, count))
			r.must(g.Launch(r.stream))
			r.must(r.stream.Synchronize(w.ctx))
			maximum := 10*cycle + 2 // from rank 2
			r.expectFilled(output, maximum, count)
		}

		checkWindow(r, r.group, b)
	})
}

// preferDirectPath returns the call on PathDirect or, if that is not supported, on another path.
func preferDirectPath(r *rank, call driver.Call) driver.Call {
	for _, path := range []driver.Path{driver.PathDirect, driver.PathWindow, driver.PathPlain} {
		call.Path = path
		if accepts(r.group, call) {
			break
		}
	}

	return call
}

// Without its window, the segment can be resumed and registered again.
func testDeregisterSuspended(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		b := r.newWindow(1)
		suspendWindow(r, b)
		r.must(b.window.Deregister())
		r.must(asSuspendable(r, b.segment).Resume())
		b.window = r.register(r.group, r.nextKey(), b)
		checkWindow(r, r.group, b)
	})
}

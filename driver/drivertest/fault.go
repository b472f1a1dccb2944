package drivertest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"symmem/driver"
	"symmem/internal/control/controltest"
)

var faultClauses = []clause{
	{"Abort ends the waits of all ranks", testAbort},
	{"the error names a rank that does not join a collective", testAbsentCollective},
	{"the error names a rank that does not join an exchange", testAbsentExchange},
	{"the error names a rank that does not join a registration", testAbsentRegister},
	{"a failed background agreement disables only its lane", testAbsentBackground},
	{"a sender's error names a receiver that does not respond", testAbsentReceiver},
	{"a deadlock of ranks in different calls is detected immediately", testDeadlock},
	{"a deadlock is detected while another lane is busy", testDeadlockWithBusyLane},
	{"an exchange on the fault lane ends the other ranks' waits", testFaultLaneCalls},
	{"the fault lane does not wait for absent ranks, which can read it later", testFaultLaneAbsent},
	{"a failed group reports its cause, and a new one works", testNewGroup},
}

var barrier = driver.Call{Operation: driver.Barrier, Digest: 1}

func testAbort(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{expectFaults: true})
	w.each(func(r *rank) {
		if r.number == 0 {
			r.group.Abort(nil)
			_, err := r.group.Exchange(w.ctx, driver.LaneControl, nil)
			wantError(t, "rank 0", err, driver.ErrAborted)
			return
		}
		err := r.launch(r.group, r.stream, barrier)
		if r.number == 2 {
			_, err = r.group.Exchange(w.ctx, driver.LaneControl, nil)
		}
		if !errors.Is(err, driver.ErrFault) && !errors.Is(err, driver.ErrAborted) {
			r.failf("got %v, want ErrFault or ErrAborted", err)
		}
		<-r.group.Failed()
	})
}

// checkAbsence runs call on all ranks except the last, and later on the last rank. At least one
// error must name the last rank. The last rank's first call may succeed, because the data of the
// others has already arrived, but its second call must fail.
func checkAbsence(t *testing.T, w *world, call func(r *rank) error) {
	t.Helper()
	late := len(w.ranks) - 1
	named := 0
	for _, err := range w.outcomes(func(r *rank) error {
		if r.number == late {
			return nil
		}
		defer func() { <-r.group.Failed() }()
		return call(r)
	})[:late] {
		named += controltest.WantAbsence(t, err, late)
	}
	if named == 0 {
		t.Error("no rank got a TimeoutError")
	}
	err := call(w.ranks[late])
	if err == nil {
		err = call(w.ranks[late])
	}
	if err == nil {
		t.Error("both calls of the late rank succeeded, want an error")
	}
}

// testAbsentCollective starts a collective without the last rank, which then must not write to the
// windows of the other ranks, because they may have reused the memory.
func testAbsentCollective(t *testing.T, h Harness) {
	for _, path := range h.Paths {
		for _, count := range []int64{0, 5, 1 << 14} {
			t.Run(fmt.Sprint(path, " ", count), func(t *testing.T) {
				fx := newFixture(t, h, 3, 1<<20, options{
					timeout: shortTimeout, check: true, expectFaults: true,
				})
				tr := trial{operation: driver.AllReduce, count: count, path: path}
				checkAbsence(t, fx.world, func(r *rank) error {
					return r.launch(r.group, r.stream, tr.call(r, fx.send[r.number], fx.recv[r.number]))
				})
				late := fx.ranks[2]
				for _, r := range fx.ranks[:late.number] {
					expectNoResult(r, path, fx.recv[r.number].addr(margin), 0, 4*count)
				}
			})
		}
	}
}

func testAbsentExchange(t *testing.T, h Harness) {
	t.Run("timeout", func(t *testing.T) {
		w := newWorld(t, h, 3, options{timeout: shortTimeout})
		checkAbsence(t, w, func(r *rank) error {
			_, err := r.group.Exchange(context.Background(), driver.LaneControl, []byte("here"))
			return err
		})
	})
	t.Run("context", func(t *testing.T) {
		w := newWorld(t, h, 3, options{})
		ctx, cancel := context.WithTimeout(w.ctx, shortTimeout)
		defer cancel()
		checkAbsence(t, w, func(r *rank) error {
			if r.number == 2 {
				ctx = w.ctx
			}
			_, err := r.group.Exchange(ctx, driver.LaneControl, []byte("here"))
			return err
		})
	})
}

func testAbsentBackground(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{timeout: shortTimeout})
	present := w.ranks[0]
	_, err := present.group.Exchange(context.Background(), driver.LaneBackground, nil)
	if controltest.WantAbsence(t, err, 1) == 0 {
		t.Errorf("got %v, want a TimeoutError", err)
	}
	if _, err := present.group.Exchange(w.ctx, driver.LaneBackground, nil); err == nil {
		t.Error("an exchange on a failed lane succeeded, want an error")
	}
	w.each(func(r *rank) {
		r.must(r.swap(driver.LaneControl, 1, []int{3, 3}))
		r.must(r.launch(r.group, r.stream, barrier))
	})
}

func testAbsentRegister(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{timeout: shortTimeout, expectFaults: true})
	checkAbsence(t, w, func(r *rank) error {
		b := r.newBuffer(1)
		_, err := r.group.Register(context.Background(), r.nextKey(), b.segment)
		return err
	})
}

func testAbsentReceiver(t *testing.T, h Harness) {
	h.require(t, Messages)
	fx := newFixture(t, h, 2, 4<<20, options{timeout: shortTimeout, expectFaults: true})
	checkAbsence(t, fx.world, func(r *rank) error {
		call := messageCall(driver.Send, 1-r.number, 0, fx.send[r.number], 0, 3<<20)
		if err := r.launch(r.group, r.stream, call); err != nil {
			return err
		}
		// The Send may complete without a receiver, but the Recv cannot complete without a sender.
		reply := messageCall(driver.Recv, 1-r.number, 0, fx.recv[r.number], 0, 8)
		return r.launch(r.group, r.stream, reply)
	})
}

// testDeadlock makes one rank call an exchange while the other ranks call a collective.
func testDeadlock(t *testing.T, h Harness) {
	for _, exchanging := range []int{0, 2} {
		t.Run(fmt.Sprint("rank ", exchanging), func(t *testing.T) {
			w := newWorld(t, h, 3, options{expectFaults: true})
			errs := w.outcomes(func(r *rank) error { return exchangeOrBarrier(r, exchanging) })
			controltest.WantDeadlock(t, errs)
		})
	}
}

func exchangeOrBarrier(r *rank, exchanging int) error {
	if r.number == exchanging {
		_, err := r.group.Exchange(r.world.ctx, driver.LaneControl, nil)
		return err
	}
	return r.launch(r.group, r.stream, barrier)
}

// testDeadlockWithBusyLane makes the ranks deadlock while they keep exchanging on another lane.
func testDeadlockWithBusyLane(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{expectFaults: true})
	controltest.WantDeadlock(t, w.outcomes(func(r *rank) error {
		result := make(chan error, 1)
		go func() { result <- exchangeOrBarrier(r, 0) }()
		for round := 0; ; round++ {
			if r.swap(driver.LaneBackground, round, []int{1, 20000}) != nil {
				return <-result
			}
		}
	}))
}

// testFaultLaneCalls makes rank 0 exchange on the fault lane while the other ranks wait.
func testFaultLaneCalls(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{expectFaults: true})
	w.each(func(r *rank) {
		var err error
		switch r.number {
		case 1:
			err = r.launch(r.group, r.stream, barrier)
		case 2:
			_, err = r.group.Exchange(w.ctx, driver.LaneBackground, nil)
		}
		if r.number != 0 && !errors.Is(err, driver.ErrFault) {
			r.failf("got %v, want ErrFault", err)
		}
		for round := range 3 {
			r.must(r.swap(driver.LaneFault, round, []int{10, 9000, 40000}))
		}
	})
}

func testFaultLaneAbsent(t *testing.T, h Harness) {
	for _, size := range []int{7, 20000} {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			w := newWorld(t, h, 3, options{})
			w.expectFaults = true
			report := func(r *rank, present ...bool) {
				ctx, cancel := context.WithTimeout(w.ctx, shortTimeout)
				defer cancel()
				payload := controltest.Payload(r.number, 1, size)
				got, err := r.group.Exchange(ctx, driver.LaneFault, payload)
				r.must(err)
				r.must(controltest.WantReports(got, r.number, size, present))
			}
			w.each(func(r *rank) {
				if r.number != 2 {
					report(r, true, true, false)
				}
			})
			report(w.ranks[2], true, true, true)
		})
	}
}

func testNewGroup(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{expectFaults: true})
	w.each(func(r *rank) {
		r.must(r.group.Cause())
		select {
		case <-r.group.Failed():
			r.failf("a new group has failed")
		default:
		}
		if r.number == 1 {
			r.group.Abort(nil)
		} else if err := r.launch(r.group, r.stream, barrier); err == nil {
			r.failf("a collective of an aborted group succeeded, want an error")
		}
		<-r.group.Failed()
		if r.group.Cause() == nil {
			r.failf("Cause() = nil after the group failed")
		}
		b := r.newBuffer(1)
		c := r.connect("anew", numbers(2), true)
		gatherBytes(r, c, numbers(2), b)
	})
}

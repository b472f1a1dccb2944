package drivertest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"symmem/driver"
	"symmem/internal/control/controltest"
)

var faultRequirements = []requirement{
	{"Abort ends the waits of all ranks", testAbort},
	{"the error names a rank that does not join a collective", testAbsentCollective},
	{"the error names a rank that does not join an exchange", testAbsentExchange},
	{"the error names a rank that does not join a registration", testAbsentRegister},
	{"a failed exchange on the background lane disables only this lane", testAbsentBackground},
	{"a sender's error names a receiver that does not respond", testAbsentReceiver},
	{"a deadlock of ranks in different calls is detected immediately", testDeadlock},
	{"a deadlock is detected while another lane is busy", testDeadlockWithBusyLane},
	{"an exchange on the fault lane ends the other ranks' waits", testFaultLaneCalls},
	{"an exchange on the fault lane does not wait for absent ranks", testFaultLaneAbsent},
	{"a failed group reports its cause, and a new group works", testNewGroup},
}

// barrier is a Barrier with the same Digest on all ranks.
var barrier = driver.Call{Operation: driver.Barrier, Digest: 1}

func testAbort(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{allowFaults: true})
	w.onEachRank(func(r *rank) {
		if r.number == 0 {
			r.group.Abort(nil)
			_, err := r.group.Exchange(w.ctx, driver.LaneControl, nil)
			wantError(t, "rank 0", err, driver.ErrAborted)
			return
		}
		err := r.launchAndWait(r.group, r.stream, barrier)
		if r.number == 2 {
			_, err = r.group.Exchange(w.ctx, driver.LaneControl, nil)
		}
		if !errors.Is(err, driver.ErrFault) && !errors.Is(err, driver.ErrAborted) {
			r.failf("got %v, want ErrFault or ErrAborted", err)
		}
		<-r.group.Failed()
	})
}

// checkAbsentRank runs call on all ranks except the last, and later on the last rank. At least one
// error must name the last rank. The last rank's first call can succeed with the data that the
// other ranks have already sent. Its second call must fail.
func checkAbsentRank(t *testing.T, w *world, call func(r *rank) error) {
	t.Helper()
	lateRank := len(w.ranks) - 1
	namingErrors := 0 // errors that name the late rank
	for _, err := range w.errorsByRank(func(r *rank) error {
		if r.number == lateRank {
			return nil
		}
		defer func() { <-r.group.Failed() }()
		return call(r)
	})[:lateRank] {
		namingErrors += controltest.CountTimeouts(t, err, lateRank)
	}
	if namingErrors == 0 {
		t.Error("no rank got a TimeoutError")
	}
	err := call(w.ranks[lateRank])
	if err == nil {
		err = call(w.ranks[lateRank])
	}
	if err == nil {
		t.Error("both calls of the late rank succeeded, want an error")
	}
}

// testAbsentCollective starts a collective without the last rank. The last rank must not write to
// the windows of the other ranks later, because they may have reused the memory.
func testAbsentCollective(t *testing.T, h Harness) {
	for _, path := range h.Paths {
		for _, count := range []int64{0, 5, 1 << 14} {
			t.Run(fmt.Sprint(path, " ", count), func(t *testing.T) {
				bw := newBufferWorld(t, h, 3, 1<<20, options{
					timeout: shortTimeout, checkCalls: true, allowFaults: true,
				})
				tr := trial{operation: driver.AllReduce, count: count, path: path}
				checkAbsentRank(t, bw.world, func(r *rank) error {
					call := tr.call(r, bw.send[r.number], bw.recv[r.number])
					return r.launchAndWait(r.group, r.stream, call)
				})
				lateRank := bw.ranks[2]
				for _, r := range bw.ranks[:lateRank.number] {
					expectNoResult(r, path, bw.recv[r.number].addressAt(canaryCount), 0, 4*count)
				}
			})
		}
	}
}

func testAbsentExchange(t *testing.T, h Harness) {
	t.Run("timeout", func(t *testing.T) {
		w := newWorld(t, h, 3, options{timeout: shortTimeout})
		checkAbsentRank(t, w, func(r *rank) error {
			_, err := r.group.Exchange(context.Background(), driver.LaneControl, []byte("here"))
			return err
		})
	})
	t.Run("context", func(t *testing.T) {
		w := newWorld(t, h, 3, options{})
		ctx, cancel := context.WithTimeout(w.ctx, shortTimeout)
		defer cancel()
		checkAbsentRank(t, w, func(r *rank) error {
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
	presentRank := w.ranks[0]
	_, err := presentRank.group.Exchange(context.Background(), driver.LaneBackground, nil)
	if controltest.CountTimeouts(t, err, 1) == 0 {
		t.Errorf("got %v, want a TimeoutError", err)
	}
	if _, err := presentRank.group.Exchange(w.ctx, driver.LaneBackground, nil); err == nil {
		t.Error("an exchange on a failed lane succeeded, want an error")
	}
	w.onEachRank(func(r *rank) {
		r.must(r.exchangePayloads(driver.LaneControl, 1, []int{3, 3}))
		r.must(r.launchAndWait(r.group, r.stream, barrier))
	})
}

func testAbsentRegister(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{timeout: shortTimeout, allowFaults: true})
	checkAbsentRank(t, w, func(r *rank) error {
		b := r.newBuffer(1)
		_, err := r.group.Register(context.Background(), r.nextKey(), b.segment)
		return err
	})
}

func testAbsentReceiver(t *testing.T, h Harness) {
	h.require(t, Messages)
	bw := newBufferWorld(t, h, 2, 4<<20, options{timeout: shortTimeout, allowFaults: true})
	checkAbsentRank(t, bw.world, func(r *rank) error {
		peer := 1 - r.number
		call := message{peer: peer, bytes: 3 << 20}.send(bw.send[r.number])
		if err := r.launchAndWait(r.group, r.stream, call); err != nil {
			return err
		}
		// The Send may complete without a receiver, but the Recv cannot complete without a sender.
		reply := message{peer: peer, bytes: 8}.recv(bw.recv[r.number])
		return r.launchAndWait(r.group, r.stream, reply)
	})
}

// testDeadlock makes one rank call an exchange while the other ranks call a collective.
func testDeadlock(t *testing.T, h Harness) {
	for _, exchangingRank := range []int{0, 2} {
		t.Run(fmt.Sprint("rank ", exchangingRank), func(t *testing.T) {
			w := newWorld(t, h, 3, options{allowFaults: true})
			errs := w.errorsByRank(func(r *rank) error {
				return exchangeOrBarrier(r,
					exchangingRank)
			})
			controltest.CheckDeadlocks(t, errs)
		})
	}
}

func exchangeOrBarrier(r *rank, exchangingRank int) error {
	if r.number == exchangingRank {
		_, err := r.group.Exchange(r.world.ctx, driver.LaneControl, nil)
		return err
	}
	return r.launchAndWait(r.group, r.stream, barrier)
}

// testDeadlockWithBusyLane makes the ranks deadlock while they exchange payloads on another lane.
func testDeadlockWithBusyLane(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{allowFaults: true})
	controltest.CheckDeadlocks(t, w.errorsByRank(func(r *rank) error {
		result := make(chan error, 1)
		go func() { result <- exchangeOrBarrier(r, 0) }()
		for round := 0; ; round++ {
			if r.exchangePayloads(driver.LaneBackground, round, []int{1, 20000}) != nil {
				return <-result
			}
		}
	}))
}

// testFaultLaneCalls makes rank 0 exchange on the fault lane (the channel for reports of failures)
// while the other ranks wait.
func testFaultLaneCalls(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{allowFaults: true})
	w.onEachRank(func(r *rank) {
		var err error
		switch r.number {
		case 1:
			err = r.launchAndWait(r.group, r.stream, barrier)
		case 2:
			_, err = r.group.Exchange(w.ctx, driver.LaneBackground, nil)
		}
		if r.number != 0 && !errors.Is(err, driver.ErrFault) {
			r.failf("got %v, want ErrFault", err)
		}
		for round := range 3 {
			r.must(r.exchangePayloads(driver.LaneFault, round, []int{10, 9000, 40000}))
		}
	})
}

func testFaultLaneAbsent(t *testing.T, h Harness) {
	for _, size := range []int{7, 20000} {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			w := newWorld(t, h, 3, options{})
			w.allowFaults = true
			report := func(r *rank, presentRank ...bool) {
				ctx, cancel := context.WithTimeout(w.ctx, shortTimeout)
				defer cancel()
				payload := controltest.Payload(r.number, 1, size)
				got, err := r.group.Exchange(ctx, driver.LaneFault, payload)
				r.must(err)
				r.must(controltest.CheckReports(got, r.number, size, presentRank))
			}
			w.onEachRank(func(r *rank) {
				if r.number != 2 {
					report(r, true, true, false)
				}
			})
			report(w.ranks[2], true, true, true)
		})
	}
}

func testNewGroup(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{allowFaults: true})
	w.onEachRank(func(r *rank) {
		r.must(r.group.Cause())
		select {
		case <-r.group.Failed():
			r.failf("a new group has failed")
		default:
		}
		if r.number == 1 {
			r.group.Abort(nil)
		} else if err := r.launchAndWait(r.group, r.stream, barrier); err == nil {
			r.failf("a collective of an aborted group succeeded, want an error")
		}
		<-r.group.Failed()
		if r.group.Cause() == nil {
			r.failf("Cause() = nil after the group failed")
		}
		b := r.newBuffer(1)
		c := r.connect("anew", firstNumbers(2), true)
		checkAllGather(r, c, firstNumbers(2), b)
	})
}

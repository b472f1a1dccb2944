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

// testAbort makes rank 0 abort the group, while the other ranks wait in a barrier. Rank 2 makes an
// exchange after the failed barrier.
func testAbort(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{ignoreCloseErrors: true})
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
	lateNumber := len(w.ranks) - 1
	late := w.ranks[lateNumber]
	errs := w.errorsByRank(func(r *rank) error {
		if r == late {
			return nil
		}

		err := call(r)
		<-r.group.Failed()
		return err
	})
	namingErrors := 0 // errors that name the late rank
	for _, err := range errs[:lateNumber] {
		namingErrors += controltest.CountTimeouts(t, err, lateNumber)
	}

	if namingErrors == 0 {
		t.Error("no rank got a TimeoutError")
	}

	firstErr := call(late)
	if firstErr != nil {
		return
	}

	secondErr := call(late)
	if secondErr == nil {
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
					timeout: shortTimeout, checkCalls: true, ignoreCloseErrors: true,
				})
				tr := trial{operation: driver.AllReduce, count: count, path: path}
				checkAbsentRank(t, bw.world, func(r *rank) error {
					call := tr.call(r, bw.send[r.number], bw.recv[r.number])
					return r.launchAndWait(r.group, r.stream, call)
				})
				const before = 0                 // value of a new buffer
				resultBytes := 4 * count         // of float32 elements
				for _, r := range bw.ranks[:2] { // the ranks that were not late
					output := bw.recv[r.number].addressAt(canaryCount)
					expectNoResult(r, path, output, before, resultBytes)
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
		shortCtx, cancel := context.WithTimeout(w.ctx, shortTimeout)
		defer cancel()
		checkAbsentRank(t, w, func(r *rank) error {
			ctx := shortCtx
			if r.number == 2 {
				ctx = w.ctx // shortCtx has ended when the late rank makes its calls
			}

			_, err := r.group.Exchange(ctx, driver.LaneControl, []byte("here"))
			return err
		})
	})
}

// testAbsentBackground makes rank 0 exchange alone on the background lane (the channel for
// exchanges for which no caller waits). The control lane and collectives must still work.
func testAbsentBackground(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{timeout: shortTimeout})
	group := w.ranks[0].group
	_, err := group.Exchange(context.Background(), driver.LaneBackground, nil)
	const absentRank = 1
	if controltest.CountTimeouts(t, err, absentRank) == 0 {
		t.Errorf("got %v, want a TimeoutError", err)
	}

	_, err = group.Exchange(w.ctx, driver.LaneBackground, nil)
	if err == nil {
		t.Error("an exchange on a failed lane succeeded, want an error")
	}

	w.onEachRank(func(r *rank) {
		const round = 1
		r.must(exchangePayloads(r, driver.LaneControl, round, []int{3, 3}))
		r.must(r.launchAndWait(r.group, r.stream, barrier))
	})
}

func testAbsentRegister(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{timeout: shortTimeout, ignoreCloseErrors: true})
	checkAbsentRank(t, w, func(r *rank) error {
		b := r.newBuffer(1)
		_, err := r.group.Register(context.Background(), r.nextKey(), b.segment)
		return err
	})
}

func testAbsentReceiver(t *testing.T, h Harness) {
	h.require(t, Messages)
	bw := newBufferWorld(t, h, 2, 4<<20, options{timeout: shortTimeout, ignoreCloseErrors: true})
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
			w := newWorld(t, h, 3, options{ignoreCloseErrors: true})
			errs := w.errorsByRank(func(r *rank) error { return exchangeOrBarrier(r, exchangingRank) })
			controltest.CheckDeadlocks(t, errs)
		})
	}
}

// exchangeOrBarrier makes an exchange on one rank, and a barrier on the others.
func exchangeOrBarrier(r *rank, exchangingRank int) error {
	if r.number == exchangingRank {
		_, err := r.group.Exchange(r.world.ctx, driver.LaneControl, nil)
		return err
	}

	return r.launchAndWait(r.group, r.stream, barrier)
}

// testDeadlockWithBusyLane makes the ranks deadlock while they exchange payloads on another lane.
func testDeadlockWithBusyLane(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{ignoreCloseErrors: true})
	const exchangingRank = 0
	sizes := []int{1, 20000}
	errs := w.errorsByRank(func(r *rank) error {
		result := make(chan error, 1)
		go func() { result <- exchangeOrBarrier(r, exchangingRank) }()
		round := 0
		for exchangePayloads(r, driver.LaneBackground, round, sizes) == nil { // until the group fails
			round++
		}

		return <-result
	})
	controltest.CheckDeadlocks(t, errs)
}

// testFaultLaneCalls makes rank 0 exchange on the fault lane (the channel for reports of failures)
// while the other ranks wait.
func testFaultLaneCalls(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{ignoreCloseErrors: true})
	w.onEachRank(func(r *rank) {
		var waitErr error
		switch r.number {
		case 1:
			waitErr = r.launchAndWait(r.group, r.stream, barrier)
		case 2:
			_, waitErr = r.group.Exchange(w.ctx, driver.LaneBackground, nil)
		}

		if r.number != 0 && !errors.Is(waitErr, driver.ErrFault) {
			r.failf("got %v, want ErrFault", waitErr)
		}

		for round := range 3 {
			r.must(exchangePayloads(r, driver.LaneFault, round, []int{10, 9000, 40000}))
		}
	})
}

// testFaultLaneAbsent makes ranks 0 and 1 exchange on the fault lane, and later rank 2. The later
// exchange must return the payloads of all ranks.
func testFaultLaneAbsent(t *testing.T, h Harness) {
	for _, size := range []int{7, 20000} {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			w := newWorld(t, h, 3, options{ignoreCloseErrors: true})
			// exchange expects payloads of the ranks r for which isPresent[r] is set.
			exchange := func(r *rank, isPresent []bool) {
				ctx, cancel := context.WithTimeout(w.ctx, shortTimeout)
				defer cancel()
				const round = 1
				payload := controltest.Payload(r.number, round, size)
				got, err := r.group.Exchange(ctx, driver.LaneFault, payload)
				r.must(err)
				r.must(controltest.CheckReports(got, r.number, size, isPresent))
			}
			w.onEachRank(func(r *rank) {
				if r.number != 2 {
					exchange(r, []bool{true, true, false})
				}
			})
			exchange(w.ranks[2], []bool{true, true, true})
		})
	}
}

// testNewGroup makes rank 1 abort the group, and then connects another group.
func testNewGroup(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{ignoreCloseErrors: true})
	w.onEachRank(func(r *rank) {
		r.must(r.group.Cause())
		select {
		case <-r.group.Failed():
			r.failf("a new group has failed")
		default: // the group works
		}

		if r.number == 1 {
			r.group.Abort(nil)
		} else {
			err := r.launchAndWait(r.group, r.stream, barrier)
			if err == nil {
				r.failf("a collective of an aborted group succeeded, want an error")
			}
		}

		<-r.group.Failed()
		if r.group.Cause() == nil {
			r.failf("Cause() = nil after the group failed")
		}

		b := r.newBuffer(1)
		c := r.connect(driver.GroupConfig{ID: "anew", Ranks: []int{0, 1}, Check: true})
		checkAllGather(r, c, []int{0, 1}, b)
	})
}

package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"symmem"
)

// A fault makes a group fail on all its ranks. The ranks may see different faults: rank 1 sees that
// rank 2 is lost, and rank 0 only times out. So each rank reports what it has seen, and the
// ranks agree on one of the reports, the cause. Group.Err and Group.Cause return the cause on each
// rank. In a test, symmem.Fail makes a group fail on this rank with the given report.

// firstCauses lists reports of all types. If the reports of the ranks differ, the cause is the one
// whose type comes first in this list. docs/reference/failures.md has the same order.
var firstCauses = []error{
	&symmem.RankLostError{Ranks: []int{2}, InCall: "AllReduce 1"},
	&symmem.PriorError{InCall: "AllReduce 1", Rank: 1, Cause: symmem.ErrAborted},
	&symmem.DeadlockError{InCall: "AllReduce 1", Activity: map[int]string{2: "in an agreement"}},
	&symmem.MessageError{Fault: symmem.MessagesDiffer},
	&symmem.TimeoutError{InCall: "AllReduce 1", Waited: time.Second, Missing: []int{2}},
	fmt.Errorf("the group: %w", symmem.ErrAborted),
}

// TestFirstCauseIsErrorOfAllRanks makes rank 1 report another fault than ranks 0 and 2, for each
// pair of faults. All ranks must get the fault of rank 1, which comes first in firstCauses.
func TestFirstCauseIsErrorOfAllRanks(t *testing.T) {
	for i, earlier := range firstCauses {
		for _, later := range firstCauses[i+1:] {
			t.Run(fmt.Sprintf("%T before %T", earlier, later), func(t *testing.T) {
				checkEarlierIsCause(t, earlier, later)
			})
		}
	}
}

// checkEarlierIsCause makes rank 1 report the fault earlier, and ranks 0 and 2 the fault later.
func checkEarlierIsCause(t *testing.T, earlier, later error) {
	t.Helper()
	const ranks = 3
	var texts errorTexts
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		report := later
		if r.Rank() == 1 {
			report = earlier
		}

		symmem.Fail(g, report)
		cause := g.Cause(r.ctx)
		if reflect.TypeOf(cause) != reflect.TypeOf(earlier) {
			r.failf("got %T (%v), want %T", cause, cause, earlier)
		}

		texts.add(r, cause)
	})
	texts.requireSame(t, ranks)
}

// TestLateReportNamesWaitPosition makes ranks 0 and 2 wait for rank 1, which waits for them in
// another call. The cause, a TimeoutError, must say in which call each rank waits.
func TestLateReportNamesWaitPosition(t *testing.T) {
	var texts errorTexts
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		reportByRank := []*symmem.TimeoutError{
			{InCall: "AllReduce 7", Missing: []int{1}},
			{InCall: "AllGather 63, call 1 of capture 4", Missing: []int{0, 2}},
			{InCall: "AllReduce 7", Missing: []int{1}},
		}
		report := reportByRank[r.Rank()]
		report.Waited = time.Second
		symmem.Fail(g, report)
		var timeoutErr *symmem.TimeoutError
		if cause := g.Cause(r.ctx); !errors.As(cause, &timeoutErr) {
			r.failf("got %v, want a TimeoutError", cause)
		}

		want := map[int]string{
			0: "waits in AllReduce 7, for rank 1",
			1: "waits in AllGather 63, call 1 of capture 4, for ranks 0,2",
			2: "waits in AllReduce 7, for rank 1",
		}
		if !reflect.DeepEqual(timeoutErr.Activity, want) {
			r.failf("Activity = %q, want %q", timeoutErr.Activity, want)
		}

		texts.add(r, timeoutErr)
	})
	texts.requireSame(t, 3)
}

// TestLateReportOfRankWithoutTime makes ranks 0 and 2 report that they have waited for rank 1, and
// rank 1 that it began its call after the deadline. The cause must say both.
func TestLateReportOfRankWithoutTime(t *testing.T) {
	const beganLate = "began this call when its deadline had passed or was near"
	var texts errorTexts
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		report := &symmem.TimeoutError{
			InCall: "AllReduce 7", Waited: time.Second, Missing: []int{1},
			Activity: map[int]string{1: "in no call of this group"},
		}
		if r.Rank() == 1 {
			report = &symmem.TimeoutError{
				InCall: "AllReduce 8", Activity: map[int]string{1: beganLate},
			}
		}

		symmem.Fail(g, report)
		err := g.Cause(r.ctx)
		texts.add(r, err)
		const want = "AllReduce 7: waited 1s for rank 1; rank 1: " + beganLate
		if err == nil || err.Error() != want {
			r.failf("got %v, want %s", err, want)
		}
	})
	texts.requireSame(t, 3)
}

// TestErrDoesNotWait calls Err and Cause after a fault, before the ranks have agreed on its cause.
// Err must return nil, and Cause must wait until its context ends. After the agreement, both must
// return the cause, even if the context of Cause has ended.
func TestErrDoesNotWait(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		release := make(chan struct{})
		symmem.HoldReports(r.Runtime, func() { <-release }) // delays the agreement
		g := r.split(r.World(), 0)
		r.ok(g.Cause(r.ctx)) // the group has no fault
		g.Abort()
		<-g.Failing() // is closed before the agreement
		r.ok(g.Err())
		canceled, cancel := context.WithCancel(r.ctx)
		cancel()
		r.wantErr(g.Cause(canceled), context.Canceled)
		close(release)
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		r.wantErr(g.Cause(canceled), symmem.ErrAborted)
		r.wantErr(g.Err(), symmem.ErrAborted)
	})
}

// TestInterruptedCallReturnsErrInterrupted interrupts a barrier of rank 0. While a call waits, it
// repeatedly calls the option Interrupted, and ends if that returns an error. The error of the
// barrier must contain this error, and the group must end.
func TestInterruptedCallReturnsErrInterrupted(t *testing.T) {
	errStop := errors.New("stop")
	var interrupt atomic.Bool     // makes the next call of Interrupted fail
	joined := make(chan struct{}) // closed when rank 1 has joined the group
	options := symmem.Options{Interrupted: func() error {
		if interrupt.Swap(false) {
			return errStop
		}

		return nil
	}}
	runRanks(t, 2, options, func(r *rank) {
		if r.Device().Backend != "host" {
			r.skip("on GPUs, collectives do not wait in the calling goroutine",
				symmem.ErrUnsupported)
		}

		g := r.split(r.World(), 0)
		if r.Rank() == 1 {
			close(joined)
			<-g.Ended()
			r.wantErr(g.Err(), symmem.ErrAborted)
			return
		}

		<-joined // until then, the interruption would end the wait in split
		interrupt.Store(true)
		callErr := g.Barrier(r.ctx, nil)
		syncErr := r.DefaultStream().Synchronize(r.ctx)
		err := errors.Join(callErr, syncErr) // the interruption ends either call
		r.wantErr(err, symmem.ErrInterrupted)
		r.wantErr(err, errStop)
	})
}

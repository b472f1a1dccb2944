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

// firstCauses lists faults in the order of docs/reference/failures.md. After a fault, the ranks
// report what they know. If their reports differ, every rank gets the fault that comes first in
// this list.
var firstCauses = []error{
	&symmem.RankLostError{Ranks: []int{2}, InCall: "AllReduce 1"},
	&symmem.PriorError{InCall: "AllReduce 1", Rank: 1, Cause: symmem.ErrAborted},
	&symmem.DeadlockError{InCall: "AllReduce 1", Activity: map[int]string{2: "in an agreement"}},
	&symmem.MessageError{Fault: symmem.MessagesDiffer},
	&symmem.TimeoutError{InCall: "AllReduce 1", Waited: time.Second, Missing: []int{2}},
	fmt.Errorf("the group: %w", symmem.ErrAborted),
}

// TestFirstCauseIsErrorOfAllRanks makes rank 1 report a different fault than the others, for each
// pair of faults. All ranks must get the fault of rank 1, which comes first.
func TestFirstCauseIsErrorOfAllRanks(t *testing.T) {
	for i, earlierCause := range firstCauses {
		for _, laterCause := range firstCauses[i+1:] {
			t.Run(fmt.Sprintf("%T before %T", earlierCause, laterCause), func(t *testing.T) {
				var texts errorTexts
				runRanks(t, 3, symmem.Options{}, func(r *rank) {
					g := r.split(r.World(), 0)
					report := laterCause
					if r.Rank() == 1 {
						report = earlierCause
					}

					symmem.Fail(g, report)
					err := g.Cause(r.ctx)
					if reflect.TypeOf(err) != reflect.TypeOf(earlierCause) {
						r.failf("got %T (%v), want %T", err, err, earlierCause)
					}

					texts.add(r, err)
				})
				texts.requireSame(t, 3)
			})
		}
	}
}

// TestLateReportNamesWaitPosition checks that a TimeoutError says where each rank waits. Ranks 0
// and 2 wait for rank 1, which waits for them in another call.
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

// TestLateReportOfRankWithoutTime makes rank 1 report that it began its wait after the deadline.
// The other ranks report that they have waited for rank 1. The cause must say both.
func TestLateReportOfRankWithoutTime(t *testing.T) {
	var texts errorTexts
	const beganLate = "began this call when its deadline had passed or was near"
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

// TestErrDoesNotWait calls Err and Cause before the ranks have agreed on the cause of a fault. Err
// must return nil, and Cause must wait until its context ends. After the agreement, both must
// return the cause, even with a context that has ended.
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

// TestInterruptedCallReturnsErrInterrupted interrupts a barrier of rank 0, through an option that
// waits call repeatedly. The error must contain the option's error, and the group must end.
func TestInterruptedCallReturnsErrInterrupted(t *testing.T) {
	errStop := errors.New("stop")
	var interrupt atomic.Bool     // makes the next call of Options.Interrupted fail
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
		err := errors.Join(callErr, syncErr) // either call may be interrupted
		r.wantErr(err, symmem.ErrInterrupted)
		r.wantErr(err, errStop)
	})
}

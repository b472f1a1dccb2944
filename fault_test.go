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

// firstCauses lists faults in the order of docs/reference/failures.md. If the ranks report
// different faults, every rank gets the fault that comes first in this list.
var firstCauses = []error{
	&symmem.RankLostError{Ranks: []int{2}, InCall: "AllReduce 1"},
	&symmem.PriorError{InCall: "AllReduce 1", Rank: 1, Cause: symmem.ErrAborted},
	&symmem.DeadlockError{InCall: "AllReduce 1", Activity: map[int]string{2: "in an agreement"}},
	&symmem.MessageError{Fault: symmem.MessagesDiffer},
	&symmem.TimeoutError{InCall: "AllReduce 1", Waited: time.Second, Missing: []int{2}},
	fmt.Errorf("the group: %w", symmem.ErrAborted),
}

func TestFirstCauseIsErrorOfAllRanks(t *testing.T) {
	for i, earlierCause := range firstCauses {
		for _, laterCause := range firstCauses[i+1:] {
			t.Run(fmt.Sprintf("%T before %T", earlierCause, laterCause), func(t *testing.T) {
				var texts errorTexts
				runRanks(t, 3, symmem.Options{}, func(r *rank) {
					g, cause := r.split(r.World(), 0), laterCause
					if r.Rank() == 1 {
						cause = earlierCause
					}
					symmem.Fail(g, cause)
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
		calls := []string{"AllReduce 7", "AllGather 63, call 1 of capture 4", "AllReduce 7"}
		missing := [][]int{{1}, {0, 2}, {1}}[r.Rank()]
		symmem.Fail(g, &symmem.TimeoutError{
			InCall: calls[r.Rank()], Waited: time.Second, Missing: missing,
		})
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

// TestLateReportOfRankWithoutTime lets rank 1 begin its wait after the deadline. The other ranks
// have waited for rank 1. The cause must say both.
func TestLateReportOfRankWithoutTime(t *testing.T) {
	var texts errorTexts
	const beganLate = "began this call when its deadline had passed or was near"
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		failure := &symmem.TimeoutError{
			InCall: "AllReduce 7", Waited: time.Second, Missing: []int{1},
			Activity: map[int]string{1: "in no call of this group"},
		}
		if r.Rank() == 1 {
			failure = &symmem.TimeoutError{
				InCall: "AllReduce 8", Activity: map[int]string{1: beganLate},
			}
		}
		symmem.Fail(g, failure)
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
// must return nil, and Cause must wait until its context ends.
func TestErrDoesNotWait(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		release := make(chan struct{})
		symmem.HoldReports(r.Runtime, func() { <-release }) // delays the agreement
		g := r.split(r.World(), 0)
		r.ok(g.Cause(r.ctx))
		g.Abort()
		<-g.Failing()
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
		<-joined
		interrupt.Store(true)
		err := errors.Join(g.Barrier(r.ctx, nil), r.DefaultStream().Synchronize(r.ctx))
		r.wantErr(err, symmem.ErrInterrupted)
		r.wantErr(err, errStop)
	})
}

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

// Ranks may get different errors after a fault: if rank 2 dies, rank 1 may lose a connection while
// rank 0 only times out. The ranks exchange their errors and agree on one of them, the cause.
// symmem.Fail injects the error of one rank.

// causesByPrecedence holds an error of each type. Of the ranks' errors, the cause is the one that
// comes first here.
var causesByPrecedence = []error{
	&symmem.RankLostError{Ranks: []int{2}, InCall: "AllReduce 1"},
	&symmem.PriorError{InCall: "AllReduce 1", Rank: 1, Cause: symmem.ErrAborted},
	&symmem.DeadlockError{InCall: "AllReduce 1", Activity: map[int]string{2: "in an agreement"}},
	&symmem.MessageError{Fault: symmem.MessagesDiffer},
	&symmem.TimeoutError{InCall: "AllReduce 1", Waited: time.Second, Missing: []int{2}},
	fmt.Errorf("the group: %w", symmem.ErrAborted),
}

func TestFirstCauseIsErrorOfAllRanks(t *testing.T) {
	for i, higher := range causesByPrecedence {
		for _, lower := range causesByPrecedence[i+1:] {
			t.Run(fmt.Sprintf("%T before %T", higher, lower), func(t *testing.T) {
				checkHigherIsCause(t, higher, lower)
			})
		}
	}
}

// checkHigherIsCause injects higher on rank 1 and lower on ranks 0 and 2.
func checkHigherIsCause(t *testing.T, higher, lower error) {
	t.Helper()
	const ranks = 3
	var texts errorTexts
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		if r.Rank() == 1 {
			symmem.Fail(g, higher)
		} else {
			symmem.Fail(g, lower)
		}

		cause := g.Cause(r.ctx)
		if reflect.TypeOf(cause) != reflect.TypeOf(higher) {
			r.failf("got %T (%v), want %T", cause, cause, higher)
		}

		texts.add(r, cause)
	})
	texts.requireSame(t, ranks)
}

// If all ranks time out, the cause contains the call in which each rank waits.
func TestLateReportNamesWaitPosition(t *testing.T) {
	const ranks = 3
	var texts errorTexts
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		const sum = "AllReduce 7"
		const capturedGather = "AllGather 63, call 1 of capture 4"
		errorsByRank := []*symmem.TimeoutError{
			{InCall: sum, Missing: []int{1}, Waited: time.Second},
			{InCall: capturedGather, Missing: []int{0, 2}, Waited: time.Second},
			{InCall: sum, Missing: []int{1}, Waited: time.Second},
		}
		symmem.Fail(g, errorsByRank[r.Rank()])
		var timeoutErr *symmem.TimeoutError
		if cause := g.Cause(r.ctx); !errors.As(cause, &timeoutErr) {
			r.failf("got %v, want a TimeoutError", cause)
		}

		want := map[int]string{
			0: "waits in " + sum + ", for rank 1",
			1: "waits in " + capturedGather + ", for ranks 0,2",
			2: "waits in " + sum + ", for rank 1",
		}
		if !reflect.DeepEqual(timeoutErr.Activity, want) {
			r.failf("Activity = %q, want %q", timeoutErr.Activity, want)
		}

		texts.add(r, timeoutErr)
	})
	texts.requireSame(t, ranks)
}

// Ranks 0 and 2 time out because rank 1 began its call too late. The cause contains the
// explanation of rank 1.
func TestLateReportOfRankWithoutTime(t *testing.T) {
	const ranks = 3
	const beganLate = "began this call when its deadline had passed or was near"
	var texts errorTexts
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		timeoutErr := &symmem.TimeoutError{
			InCall: "AllReduce 7", Waited: time.Second, Missing: []int{1},
			Activity: map[int]string{1: "in no call of this group"},
		}
		if r.Rank() == 1 {
			timeoutErr = &symmem.TimeoutError{
				InCall: "AllReduce 8", Activity: map[int]string{1: beganLate},
			}
		}

		symmem.Fail(g, timeoutErr)
		err := g.Cause(r.ctx)
		texts.add(r, err)
		const want = "AllReduce 7: waited 1s for rank 1; rank 1: " + beganLate
		if err == nil || err.Error() != want {
			r.failf("got %v, want %s", err, want)
		}
	})
	texts.requireSame(t, ranks)
}

// Until the ranks have agreed on the cause of a fault, Err returns nil and Cause waits.
func TestErrDoesNotWait(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		mayAgree := make(chan struct{})
		symmem.HoldReports(r.Runtime, func() { <-mayAgree })
		g := r.split(r.World(), 0)
		r.ok(g.Cause(r.ctx)) // does not wait before a fault
		g.Abort()
		<-g.Failing()
		r.ok(g.Err())
		canceledCtx, cancel := context.WithCancel(r.ctx)
		cancel()
		r.wantErr(g.Cause(canceledCtx), context.Canceled)
		close(mayAgree)
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		r.wantErr(g.Cause(canceledCtx), symmem.ErrAborted) // does not wait
		r.wantErr(g.Err(), symmem.ErrAborted)
	})
}

// A waiting call polls Options.Interrupted. If the poll fails, the call and the group end.
func TestInterruptedCallReturnsErrInterrupted(t *testing.T) {
	errStop := errors.New("stop")
	var failNextPoll atomic.Bool
	rank1HasGroup := make(chan struct{})
	options := symmem.Options{Interrupted: func() error {
		if failNextPoll.Swap(false) {
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
			close(rank1HasGroup)
			<-g.Ended()
			r.wantErr(g.Err(), symmem.ErrAborted)
			return
		}

		<-rank1HasGroup // no poll of rank 1 may fail
		failNextPoll.Store(true)
		callErr := g.Barrier(r.ctx, nil)
		syncErr := r.DefaultStream().Synchronize(r.ctx)
		err := errors.Join(callErr, syncErr) // either call may be interrupted
		r.wantErr(err, symmem.ErrInterrupted)
		r.wantErr(err, errStop)
	})
}

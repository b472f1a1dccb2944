package symmem_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

// A fault makes a group fail on each of its ranks. The ranks may see different faults: for example,
// rank 2 gets a wrong message, and rank 0 then times out in a call. So each rank reports what
// it knows. The ranks exchange their reports and decide on one of them, the cause. All ranks return
// the cause as their error. If reports have different types, a fixed order of the types decides: a
// MessageError, for example, comes before a TimeoutError.
//
// In a test, symmem.Fail makes a group fail on this rank, with the report of the rank.

// TestLateRankGetsDecidedCause delays the report of rank 2. The other ranks decide on the cause
// without it, and close the group. The report of rank 2 comes first in the order of types, but rank
// 2 must get the cause of the others.
func TestLateRankGetsDecidedCause(t *testing.T) {
	t.Parallel()
	const ranks = 3
	const lateRank = 2
	// After this time, the ranks no longer wait for the late rank's report.
	const groupTimeout = 100 * time.Millisecond
	var texts errorTexts
	var otherRanks sync.WaitGroup // the ranks that have not closed the group yet, without lateRank
	otherRanks.Add(ranks - 1)
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		if r.Rank() == lateRank {
			symmem.HoldReports(r.Runtime, otherRanks.Wait)
		}

		g := r.split(r.World(), 0)
		r.ok(g.SetTimeout(groupTimeout))
		if r.Rank() == lateRank {
			symmem.Fail(g, &symmem.MessageError{Fault: symmem.MessagesDiffer})
			texts.add(r, g.Cause(r.ctx))
			return
		}

		defer otherRanks.Done()
		symmem.Fail(g, &symmem.TimeoutError{InCall: "AllReduce 1", Missing: []int{lateRank}})
		texts.add(r, g.Cause(r.ctx))
		_ = g.Close() // returns the cause again
	})
	texts.requireSame(t, ranks)
}

// TestCauseAwaitsRankThatFailedFirst makes the group fail on rank 1, which delays its report until
// rank 0 has completed an exchange of reports. Rank 0 must wait for the report of rank 1, because
// only rank 1 knows the cause.
func TestCauseAwaitsRankThatFailedFirst(t *testing.T) {
	t.Parallel()
	const ranks = 2
	const failingRank = 1
	var texts errorTexts
	exchanged := make(chan struct{}) // closed after the first exchange of rank 0
	closeExchanged := sync.OnceFunc(func() { close(exchanged) })
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		var hooks symmem.ReportHooks // called before and after each exchange
		if r.Rank() == failingRank {
			hooks.Before = func() { <-exchanged }
		} else {
			hooks.After = closeExchanged
		}

		symmem.HookReports(r.Runtime, hooks)
		g := r.split(r.World(), 0)
		if r.Rank() == failingRank {
			symmem.Fail(g, &symmem.MessageError{Fault: symmem.MessagesDiffer})
		}

		<-g.Ended()
		cause := g.Err()
		if reflect.TypeOf(cause) != reflect.TypeFor[*symmem.MessageError]() {
			r.failf("Err() = %T (%v); want a MessageError", cause, cause)
		}

		texts.add(r, cause)
	})
	texts.requireSame(t, ranks)
}

// TestDepartedRanksAreCause makes ranks 1 and 2 end without a report: they leave the group, or rank
// 2 dies. Rank 0 reports only that rank 1 has failed. The cause must name the rank that died or, if
// there is none, the ranks that have left.
func TestDepartedRanksAreCause(t *testing.T) {
	t.Parallel()
	const departure = "has left the group without a report of its fault"
	for name, c := range map[string]struct {
		lost []int // the ranks that die; all others except rank 0 leave
		want error // the cause on rank 0
	}{
		"one rank is lost": {
			lost: []int{2},
			want: &symmem.RankLostError{
				Ranks: []int{2}, InCall: "AllReduce 1", Members: []int{0, 1, 2},
			},
		},
		"all ranks have left": {
			lost: nil,
			want: &symmem.DeadlockError{
				InCall: "AllReduce 1", Members: []int{0, 1, 2},
				Activity: map[int]string{1: departure, 2: departure},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkCauseOfDepartures(t, c.lost, c.want)
		})
	}
}

// TestMismatchWithoutCallIsCause makes a group fail with a MismatchError that contains no call.
func TestMismatchWithoutCallIsCause(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		mismatch := &symmem.MismatchError{Number: 3, Group: "0", Others: []int{1}}
		symmem.Fail(g, mismatch)
		if got := g.Cause(r.ctx); !errors.Is(got, mismatch) {
			r.failf("Cause() = %v; want %v", got, mismatch)
		}
	})
}

// checkCauseOfDepartures makes rank 0 report a fault after the ranks 1 and 2 have died, if lost
// contains them, or left. It fails the test unless the cause on rank 0 has the type and text of
// want.
func checkCauseOfDepartures(t *testing.T, lost []int, want error) {
	t.Helper()
	var remaining sync.WaitGroup // ranks 1 and 2, until they leave or die
	remaining.Add(2)
	checked := make(chan struct{}) // closed when rank 0 has checked the cause
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		var hooks symmem.ReportHooks
		if r.Rank() == 0 {
			hooks.Before = remaining.Wait
			hooks.Lost = lost // makes rank 0 believe that these ranks have died
		} else {
			hooks.Before = func() { <-checked } // so that rank 0 gets no report
		}

		symmem.HookReports(r.Runtime, hooks)
		g := r.split(r.World(), 0)
		if r.Rank() != 0 {
			if !slices.Contains(lost, r.Rank()) {
				r.ok(g.Close())
			}

			remaining.Done()
			<-checked
			return
		}

		defer close(checked)
		symmem.Fail(g, &symmem.PeerError{InCall: "AllReduce 1", Ranks: []int{1}})
		got := g.Cause(r.ctx)
		hasType := reflect.TypeOf(got) == reflect.TypeOf(want)
		if !hasType || got.Error() != want.Error() {
			r.failf("Cause() = %T (%v); want %T (%v)", got, got, want, want)
		}
	})
}

// TestAdoptedCauseKeepsTextAndType takes over causes on a rank that has reported another error, as
// when it gets them from the ranks that have decided. The result must have the text of the cause,
// and the same results of errors.As and errors.Is.
func TestAdoptedCauseKeepsTextAndType(t *testing.T) {
	mismatch := &symmem.MismatchError{Number: 3, Group: "world", Others: []int{1}}
	ownReport := errors.New("own")
	for _, cause := range slices.Concat(firstCauses, []error{
		mismatch,
		fmt.Errorf("%w; advice", firstCauses[2]),
		errors.New("unknown"),
		&symmem.DivergenceError{Group: "world", Message: "ranks differ", Why: "extra event"},
		&symmem.PriorError{InCall: "AllReduce 1", Rank: 1, Cause: mismatch},
		fmt.Errorf("reading: %w", symmem.ErrAborted),
	}) {
		checkAdoptedCause(t, symmem.DecidedError(ownReport, cause), cause)
	}
}

// checkAdoptedCause reports an error unless got is like the cause for callers.
func checkAdoptedCause(t *testing.T, got, cause error) {
	t.Helper()
	if got.Error() != cause.Error() {
		t.Errorf("DecidedError(%v) = %v; want the same text", cause, got)
	}

	for _, target := range []any{ // pointers for errors.As
		new(*symmem.RankLostError), new(*symmem.PriorError), new(*symmem.DeadlockError),
		new(*symmem.MessageError), new(*symmem.TimeoutError), new(*symmem.MismatchError),
		new(*symmem.DivergenceError),
	} {
		gotMatches := errors.As(got, target)
		causeMatches := errors.As(cause, target)
		if gotMatches != causeMatches {
			t.Errorf("errors.As(%v, %T) = %v; want %v", got, target, gotMatches, causeMatches)
		}
	}

	gotAborted := errors.Is(got, symmem.ErrAborted)
	causeAborted := errors.Is(cause, symmem.ErrAborted)
	if gotAborted != causeAborted {
		t.Errorf("errors.Is(%v, ErrAborted) = %v; want %v", got, gotAborted, causeAborted)
	}
}

// TestOwnErrorReplacesCauseOfSameCall takes over a cause that differs from this rank's report only
// in the ranks that it names. The result must be this rank's own error.
func TestOwnErrorReplacesCauseOfSameCall(t *testing.T) {
	ownReport := &symmem.MismatchError{Number: 3, Group: "world", Others: []int{1}}
	cause := &symmem.MismatchError{Number: 3, Group: "world", Others: []int{0}}
	if got := symmem.DecidedError(ownReport, cause); !errors.Is(got, ownReport) {
		t.Errorf("DecidedError(%v) = %v; want this rank's error %v", cause, got, ownReport)
	}
}

// TestLongCauseIsCut takes over a cause whose text is longer than the ranks exchange.
func TestLongCauseIsCut(t *testing.T) {
	const largeBytes = 2 << 20
	const maxBytes = 64 << 10 // longer texts are cut
	cause := &symmem.DivergenceError{Message: strings.Repeat("x", largeBytes)}
	got := symmem.DecidedError(errors.New("own"), cause)
	if n := len(got.Error()); n != maxBytes {
		t.Errorf("DecidedError of %d bytes = %d bytes; want %d", largeBytes, n, maxBytes)
	}
}

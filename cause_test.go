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

// When a group fails, its ranks may see different errors: one gets a wrong message, and another
// then times out. The ranks exchange reports of their errors, select one as the cause, and all
// return the cause. The choice depends on the type: a MessageError takes precedence over a
// TimeoutError.

// If other ranks have already chosen a TimeoutError, a late rank accepts it instead of its own
// MessageError.
func TestLateRankGetsDecidedCause(t *testing.T) {
	t.Parallel()
	const ranks = 3
	const lateRank = 2
	const groupTimeout = 100 * time.Millisecond // limits the wait for the late rank's report
	var texts errorTexts
	var otherRanks sync.WaitGroup // done when all ranks but lateRank have closed the group
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

// All ranks return the error of failingRank even if it misses the first exchange of reports.
func TestCauseAwaitsRankThatFailedFirst(t *testing.T) {
	t.Parallel()
	const ranks = 2
	const failingRank = 1
	var texts errorTexts
	exchanged := make(chan struct{}) // closed after the first exchange of rank 0
	endFirstExchange := sync.OnceFunc(func() { close(exchanged) })
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		var hooks symmem.ReportHooks
		if r.Rank() == failingRank {
			hooks.Before = func() { <-exchanged }
		} else {
			hooks.After = endFirstExchange
		}

		symmem.HookReports(r.Runtime, hooks)
		g := r.split(r.World(), 0)
		if r.Rank() == failingRank {
			symmem.Fail(g, &symmem.MessageError{Fault: symmem.MessagesDiffer})
		}

		<-g.Ended()
		cause := g.Err()
		if reflect.TypeOf(cause) != reflect.TypeFor[*symmem.MessageError]() {
			r.failf("Err() = %T (%v); want a *MessageError", cause, cause)
		}

		texts.add(r, cause)
	})
	texts.requireSame(t, ranks)
}

// The cause names the ranks that died. If none died, it names those that left the group without a
// report.
func TestDepartedRanksAreCause(t *testing.T) {
	t.Parallel()
	const departure = "has left the group without a report of its fault"
	for name, c := range map[string]struct {
		died []int // of ranks 1 and 2; the others leave
		want error // the cause on rank 0
	}{
		"one rank is lost": {
			died: []int{2},
			want: &symmem.RankLostError{
				Ranks: []int{2}, InCall: "AllReduce 1", Members: []int{0, 1, 2},
			},
		},
		"all ranks have left": {
			died: nil,
			want: &symmem.DeadlockError{
				InCall: "AllReduce 1", Members: []int{0, 1, 2},
				Activity: map[int]string{1: departure, 2: departure},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkCauseOfDepartures(t, c.died, c.want)
		})
	}
}

func checkCauseOfDepartures(t *testing.T, died []int, want error) {
	t.Helper()
	var departing sync.WaitGroup // ranks 1 and 2
	departing.Add(2)
	checked := make(chan struct{}) // closed when rank 0 has checked the cause
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		var hooks symmem.ReportHooks
		if r.Rank() == 0 {
			hooks.Before = departing.Wait
			hooks.Lost = died // simulates their death
		} else {
			hooks.Before = func() { <-checked } // so that they send rank 0 no report
		}

		symmem.HookReports(r.Runtime, hooks)
		g := r.split(r.World(), 0)
		if r.Rank() != 0 {
			if !slices.Contains(died, r.Rank()) {
				r.ok(g.Close())
			}

			departing.Done()
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

const callNumber = 3 // arbitrary

func TestMismatchWithoutCallIsCause(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		mismatch := &symmem.MismatchError{Number: callNumber, Group: "0", Others: []int{1}}
		symmem.Fail(g, mismatch)
		if got := g.Cause(r.ctx); !errors.Is(got, mismatch) {
			r.failf("Cause() = %v; want %v", got, mismatch)
		}
	})
}

// A rank that adopts the cause of other ranks returns an error of the same text and type.
func TestAdoptedCauseKeepsTextAndType(t *testing.T) {
	mismatch := &symmem.MismatchError{Number: callNumber, Group: "world", Others: []int{1}}
	deadlock := &symmem.DeadlockError{
		InCall: "AllReduce 1", Activity: map[int]string{2: "in an agreement"},
	}
	ownErr := errors.New("own")
	for _, cause := range slices.Concat(causesByPrecedence, []error{
		mismatch,
		fmt.Errorf("%w; advice", deadlock),
		errors.New("unknown"),
		&symmem.DivergenceError{Group: "world", Message: "ranks differ", Why: "extra event"},
		&symmem.PriorError{InCall: "AllReduce 1", Rank: 1, Cause: mismatch},
		fmt.Errorf("reading: %w", symmem.ErrAborted),
	}) {
		checkAdoptedCause(t, symmem.DecidedError(ownErr, cause), cause)
	}
}

func checkAdoptedCause(t *testing.T, got, cause error) {
	t.Helper()
	if got.Error() != cause.Error() {
		t.Errorf("DecidedError(%v) = %v; want the same text", cause, got)
	}

	for _, target := range []any{
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

// A rank keeps its own MismatchError if the cause is a MismatchError of the same call.
func TestOwnErrorReplacesCauseOfSameCall(t *testing.T) {
	ownErr := &symmem.MismatchError{Number: callNumber, Group: "world", Others: []int{1}}
	cause := &symmem.MismatchError{Number: callNumber, Group: "world", Others: []int{0}}
	if got := symmem.DecidedError(ownErr, cause); !errors.Is(got, ownErr) {
		t.Errorf("DecidedError(%v) = %v; want this rank's error %v", cause, got, ownErr)
	}
}

func TestLongCauseIsCut(t *testing.T) {
	const maxBytes = 64 << 10
	const largeBytes = 2 << 20
	cause := &symmem.DivergenceError{Message: strings.Repeat("x", largeBytes)}
	got := symmem.DecidedError(errors.New("own"), cause)
	if n := len(got.Error()); n != maxBytes {
		t.Errorf("the error for a cause of %d bytes has %d bytes; want %d", largeBytes, n, maxBytes)
	}
}

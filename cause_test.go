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

// TestLateRankGetsDecidedCause delays the report of a rank. When a group fails, its ranks exchange
// reports and decide on one of them as the cause. Here, the others decide and close the group
// before the late rank reports. Its fault would otherwise have been the cause, because it comes
// first in the order of causes. All ranks must get the same cause.
func TestLateRankGetsDecidedCause(t *testing.T) {
	t.Parallel()
	const ranks, lateRank = 3, 2
	// After this time, the ranks no longer wait for the late rank's report.
	const groupTimeout = 100 * time.Millisecond
	var texts errorTexts
	var otherRanks sync.WaitGroup // those that have not closed the group yet
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
		_ = g.Close() // returns the fault again
	})
	texts.requireSame(t, ranks)
}

// TestCauseAwaitsRankThatFailedFirst lets only rank 1 know the cause. Rank 1 delays its report
// until rank 0 has made an exchange of reports. Rank 0 must wait for the report of rank 1.
func TestCauseAwaitsRankThatFailedFirst(t *testing.T) {
	t.Parallel()
	var texts errorTexts
	exchanged := make(chan struct{}) // closed after the first exchange of rank 0
	closeExchanged := sync.OnceFunc(func() { close(exchanged) })
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		var hooks symmem.ReportHooks // called before and after each exchange of reports
		if r.Rank() == 0 {
			hooks.After = closeExchanged
		} else {
			hooks.Before = func() { <-exchanged }
		}

		symmem.HookReports(r.Runtime, hooks)
		g := r.split(r.World(), 0)
		if r.Rank() == 1 {
			symmem.Fail(g, &symmem.MessageError{Fault: symmem.MessagesDiffer})
		}

		<-g.Ended()
		if reflect.TypeOf(g.Err()) != reflect.TypeFor[*symmem.MessageError]() {
			r.failf("Err() = %T (%v); want a MessageError", g.Err(), g.Err())
		}

		texts.add(r, g.Err())
	})
	texts.requireSame(t, 2)
}

// TestDepartedRanksAreCause makes rank 1 leave without a report, and rank 2 leave or die. Rank 0
// knows only that rank 1 has failed. The cause must be the death, or else the departures.
func TestDepartedRanksAreCause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lost []int // the ranks that die; the others leave
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
				InCall:  "AllReduce 1",
				Members: []int{0, 1, 2}, Activity: map[int]string{
					1: "has left the group without a report of its fault",
					2: "has left the group without a report of its fault",
				},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var remaining sync.WaitGroup // ranks 1 and 2, until they leave or die
			remaining.Add(2)
			done := make(chan struct{}) // closed when rank 0 has checked the cause
			runRanks(t, 3, symmem.Options{}, func(r *rank) {
				// Ranks 1 and 2 report nothing. Rank 0 exchanges reports after they have left or died.
				var hooks symmem.ReportHooks
				if r.Rank() == 0 {
					hooks.Before, hooks.Lost = remaining.Wait, c.lost
				} else {
					hooks.Before = func() { <-done }
				}

				symmem.HookReports(r.Runtime, hooks)
				g := r.split(r.World(), 0)
				if r.Rank() != 0 {
					if !slices.Contains(c.lost, r.Rank()) {
						r.ok(g.Close())
					}

					remaining.Done()
					<-done
					return
				}

				defer close(done)
				symmem.Fail(g, &symmem.PeerError{InCall: "AllReduce 1", Ranks: []int{1}})
				got := g.Cause(r.ctx)
				hasType := reflect.TypeOf(got) == reflect.TypeOf(c.want)
				if !hasType || got.Error() != c.want.Error() {
					r.failf("Cause() = %T (%v); want %T (%v)", got, got, c.want, c.want)
				}
			})
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

// TestAdoptedCauseKeepsTextAndType decodes causes on a rank that has reported a different error.
// The text and the results of errors.As and errors.Is must be those of the original.
func TestAdoptedCauseKeepsTextAndType(t *testing.T) {
	mismatch := &symmem.MismatchError{Number: 3, Group: "world", Others: []int{1}}
	own := errors.New("own")
	for _, cause := range slices.Concat(firstCauses, []error{
		mismatch,
		fmt.Errorf("%w; advice", firstCauses[2]),
		errors.New("unknown"),
		&symmem.DivergenceError{Group: "world", Message: "ranks differ", Why: "extra event"},
		&symmem.PriorError{InCall: "AllReduce 1", Rank: 1, Cause: mismatch},
		fmt.Errorf("reading: %w", symmem.ErrAborted),
	}) {
		got := symmem.DecidedError(own, cause)
		if got.Error() != cause.Error() {
			t.Errorf("DecidedError(%v) = %v; want the same text", cause, got)
		}

		for _, target := range []any{ // pointers for errors.As
			new(*symmem.RankLostError), new(*symmem.PriorError), new(*symmem.DeadlockError),
			new(*symmem.MessageError), new(*symmem.TimeoutError), new(*symmem.MismatchError),
			new(*symmem.DivergenceError),
		} {
			if errors.As(got, target) != errors.As(cause, target) {
				t.Errorf("errors.As(%v, %T) = %v; want %v", got, target, errors.As(got, target),
					errors.As(cause, target))
			}
		}

		if errors.Is(got, symmem.ErrAborted) != errors.Is(cause, symmem.ErrAborted) {
			t.Errorf("errors.Is(%v, ErrAborted) = %v; want %v", got,
				errors.Is(got, symmem.ErrAborted), errors.Is(cause, symmem.ErrAborted))
		}
	}

	// The other rank's error for the same call differs only in the ranks that it names.
	peerMismatch := &symmem.MismatchError{Number: 3, Group: "world", Others: []int{0}}
	if got := symmem.DecidedError(mismatch, peerMismatch); !errors.Is(got, mismatch) {
		t.Errorf("DecidedError(%v) = %v; want this rank's own error for the same call", peerMismatch, got)
	}

	const maxBytes, largeBytes = 64 << 10, 2 << 20 // longer texts than maxBytes are cut
	large := &symmem.DivergenceError{Message: strings.Repeat("x", largeBytes)}
	if got := symmem.DecidedError(own, large); len(got.Error()) != maxBytes {
		t.Errorf("DecidedError of %d bytes = %d bytes; want %d", largeBytes, len(got.Error()), maxBytes)
	}
}

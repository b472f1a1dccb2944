package diff_test

import (
	"fmt"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
)

// TestLostBeginning compares ranks that have lost different numbers of requests from the beginning
// of the same history.
func TestLostBeginning(t *testing.T) {
	for _, c := range []struct {
		class          history.Class
		period         int // after which requests repeat
		callsPerNumber int // above 1 if messages were left out on rank 1
		wantNote       bool
	}{
		{history.MemPool, 1000, 1, false},
		{history.MemPool, 50, 1, true},
		{history.SymmemPool, 50, 1, false},
		{history.Calls, 50, 1, false},
		{history.Calls, 1000, 3, false},
		{history.Calls, 50, 3, true},
	} {
		var ranks []*history.Rank
		for number, lost := range []int{110, 240} {
			step := 1 + number*(c.callsPerNumber-1)
			s := &history.Sequence{
				Class: c.class, ID: "1 of group world", IsPartial: true, HasMessages: c.callsPerNumber > 1,
				NoPlacesReason: "test",
			}
			r := &history.Rank{Format: "test", Number: number, Sequences: []*history.Sequence{s}}
			for i := lost; i < 600; i++ {
				e := history.Event{
					Number: int64(i * step), Action: history.Alloc, Size: int64(i%c.period + 1), Stack: -1,
				}
				if c.class == history.Calls {
					e.Action, e.Size, e.Block = history.Call, 0, int32(len(r.Texts))
					r.Texts = append(r.Texts, fmt.Sprint("Barrier ", i%c.period))
				}

				s.Events = append(s.Events, e)
			}

			ranks = append(ranks, r)
		}

		r := diff.Compare(ranks, diff.Options{})
		s := r.Sequences[0]
		hasNote := strings.Contains(fmt.Sprint(s.Notes), "requests of rank 0 repeat")
		if !r.RanksAgree || s.EqualRequests != 360 || hasNote != c.wantNote {
			t.Errorf("%+v: %d equal, notes %q; want agreement on 360 requests", c, s.EqualRequests, s.Notes)
		}
	}
}

// TestLostBeginningBeforeReservation compares ranks that have lost 10 and 12 requests of a pool of
// symmem. Request 11 is a reservation, whose size must not be taken for its number.
func TestLostBeginningBeforeReservation(t *testing.T) {
	const first, reservation, end = 10, 11, 20
	var events []history.Event
	for i := first; i < end; i++ {
		e := history.Event{Number: int64(i), Action: history.Alloc, Size: 512, Stack: noStack}
		if i == reservation {
			e.Action, e.Size = history.Call, 1<<20
		}

		events = append(events, e)
	}

	ranks := ranksOf(history.SymmemPool, "1 of group world", events, events[2:])
	for _, r := range ranks {
		r.Texts, r.Sequences[0].IsPartial = []string{"reserve"}, true
	}

	r := diff.Compare(ranks, diff.Options{})
	if s := r.Sequences[0]; !r.RanksAgree || s.EqualRequests != 8 {
		t.Errorf("%d equal requests, difference %+v; want agreement on 8", s.EqualRequests,
			s.RequestDifference)
	}
}

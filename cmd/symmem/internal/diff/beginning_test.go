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

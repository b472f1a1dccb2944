package diff_test

import (
	"fmt"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
)

// partialTrace describes a trace that has lost the requests before first.
type partialTrace struct {
	class      history.Class
	rank       int
	first, end int // indexes of requests
	period     int // requests i and i+period are equal
	numberStep int // difference between the numbers of adjacent requests
}

func (p partialTrace) history() *history.Rank {
	s := &history.Sequence{
		Class: p.class, ID: "1 of group world", IsPartial: true, NoPlacesReason: "test",
	}
	r := &history.Rank{Format: "test", Number: p.rank, Sequences: []*history.Sequence{s}}
	for i := p.first; i < p.end; i++ {
		variant := i % p.period
		e := history.Event{
			Number: int64(i * p.numberStep), Action: history.Alloc, Size: int64(variant + 1), Stack: noStack,
		}
		if p.class == history.Calls {
			e.Action = history.Call
			e.Size = 0
			e.Block = int32(len(r.Texts))
			r.Texts = append(r.Texts, fmt.Sprint("Barrier ", variant))
		}

		s.Events = append(s.Events, e)
	}

	return r
}

// The traces of two ranks begin at different requests. Numbers or contents identify the requests
// that both contain. If contents repeat, a note says that this is uncertain.
func TestLostBeginning(t *testing.T) {
	const first0, first1, end = 110, 240, 600 // arbitrary
	const wantEqual = end - first1
	const shortPeriod, longPeriod = 50, 1000 // at the long one, no contents repeat
	for _, c := range []struct {
		class       history.Class
		period      int
		hasMessages bool
		wantNote    bool
	}{
		{class: history.MemPool, period: longPeriod},
		{class: history.MemPool, period: shortPeriod, wantNote: true},
		{class: history.SymmemPool, period: shortPeriod},
		{class: history.Calls, period: shortPeriod},
		{class: history.Calls, period: longPeriod, hasMessages: true},
		{class: history.Calls, period: shortPeriod, hasMessages: true, wantNote: true},
	} {
		numberStep1 := 1
		if c.hasMessages {
			numberStep1 = 3 // rank 1 has two messages between collectives, rank 0 has none
		}

		ranks := []*history.Rank{
			partialTrace{
				class: c.class, rank: 0, first: first0, end: end, period: c.period, numberStep: 1,
			}.history(),
			partialTrace{
				class: c.class, rank: 1, first: first1, end: end, period: c.period,
				numberStep: numberStep1,
			}.history(),
		}
		for _, r := range ranks {
			r.Sequences[0].HasMessages = c.hasMessages
		}

		report := diff.Compare(ranks, diff.Options{})
		s := report.Sequences[0]
		if !report.RanksAgree || s.EqualRequests != wantEqual {
			t.Errorf("%+v: %d equal, notes %q; want agreement on %d requests", c, s.EqualRequests,
				s.Notes, wantEqual)
		}

		hasNote := strings.Contains(fmt.Sprint(s.Notes), "requests of rank 0 repeat")
		if hasNote != c.wantNote {
			t.Errorf("%+v: notes %q; want a note on repeated requests: %v", c, s.Notes, c.wantNote)
		}
	}
}

// A reservation is a Call whose Size is in bytes. Compare must not take the Size for the call's
// number, as in dumps of PyTorch's Flight Recorder.
func TestLostBeginningBeforeReservation(t *testing.T) {
	const first0, reservation, first1, end = 10, 11, 12, 20
	const wantEqual = end - first1
	var events []history.Event
	for i := first0; i < end; i++ {
		e := history.Event{Number: int64(i), Action: history.Alloc, Size: 512, Stack: noStack}
		if i == reservation {
			e.Action = history.Call
			e.Size = 1 << 20
		}

		events = append(events, e)
	}

	ranks := ranksOf(history.SymmemPool, "1 of group world", events, events[first1-first0:])
	for _, r := range ranks {
		r.Texts = []string{"reserve"}
		r.Sequences[0].IsPartial = true
	}

	report := diff.Compare(ranks, diff.Options{})
	if s := report.Sequences[0]; !report.RanksAgree || s.EqualRequests != wantEqual {
		t.Errorf("%d equal requests, difference %+v; want agreement on %d", s.EqualRequests,
			s.RequestDifference, wantEqual)
	}
}

// Rank 1 has lost the only request in the first segment, so that its segments have other indexes.
func TestLostSegment(t *testing.T) {
	first := history.Event{Number: 0, Action: history.Alloc, Size: 512, Segment: 0, Stack: noStack}
	common := history.Event{Number: 1, Action: history.Alloc, Size: 1024, Segment: 1, Stack: noStack}
	commonOnRank1 := common
	commonOnRank1.Segment = 0 // the first segment in the trace of rank 1
	ranks := ranksOf(history.SymmemPool, "1 of group world",
		[]history.Event{first, common}, []history.Event{commonOnRank1})
	ranks[0].Sequences[0].Segments = make([]history.SegmentInfo, 2)
	ranks[1].Sequences[0].IsPartial = true
	report := diff.Compare(ranks, diff.Options{})
	s := report.Sequences[0]
	if !report.RanksAgree || s.EqualRequests != 1 {
		t.Errorf("%d equal requests, different places %+v; want agreement on 1", s.EqualRequests,
			s.PlacementDifference)
	}
}

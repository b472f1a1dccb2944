// Package sim runs agreements among thousands of ranks in one process, with the same ledgers and
// state machines that real ranks use. It shows how the rounds and bytes of an agreement grow with
// the number of ranks and the length of the history.
//
// The package has no clock and starts no goroutines, so a run depends only on its scenario.
// Callers can measure how long a run takes.
//
// Ranks with the same history share one ledger. For example, 4096 ranks with histories of
// 100,000 events need only the memory of one history, plus one for each deviation.
package sim

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"symmem/event"
	"symmem/internal/agreement"
	"symmem/internal/ranklist"
)

// run runs an agreement of a scenario, which must have an outcome.
func run(t testing.TB, s Scenario) Result {
	t.Helper()
	r, err := RunAgreement(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// maxRounds returns the maximum number of rounds for a history: one round for the votes, the
// rounds that search the first difference among events+1 positions, and one round for the events.
// Each round of the search leaves one of 16 parts.
func maxRounds(events int) int {
	const parts = 16
	n := 2 // the first and the last round
	for remaining := events + 1; remaining > 1; remaining = (remaining + parts - 1) / parts {
		n++
	}
	return n
}

func Test4096RanksAgreeInOneRound(t *testing.T) {
	r := run(t, Scenario{Ranks: 4096, History: History(100_000, 1)})
	if r.Outcome.Divergence != nil || r.Rounds != 1 {
		t.Fatalf("got %d rounds, divergence %v; want 1 round, no divergence",
			r.Rounds, r.Outcome.Divergence)
	}
	const maxPayloadBytes = 200
	if r.Largest > maxPayloadBytes {
		t.Fatalf("largest payload has %d bytes, want at most %d", r.Largest, maxPayloadBytes)
	}
}

// TestReportListsDeviatingRank changes the history of one of 4096 ranks. The agreement must find
// the rank and the changed event.
func TestReportListsDeviatingRank(t *testing.T) {
	const events, changed = 100_000, 77_777
	history := History(events, 2)
	for name, change := range map[string]Change{
		"resize": Resize, "drop": Drop, "repeat": Repeat, "stop": Stop,
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, Scenario{
				Ranks: 4096, History: history,
				Deviations: []Deviation{{Ranks: []int{3001}, Position: changed, Change: change}},
			})
			d := r.Outcome.Divergence
			if d == nil || d.Kind != agreement.KindPlacement || ranklist.Spans(d.Deviant) != "3001" {
				t.Fatalf("got divergence %v, want deviant rank 3001", d)
			}
			// The first difference is one position later if the event is repeated, or if a dropped
			// event is followed by an identical one.
			if position := d.Position; position != d.Last || position < changed || position > changed+1 {
				t.Fatalf("got a difference at events %d to %d, want event %d or %d", position, d.Last,
					changed, changed+1)
			}
			if r.Rounds > maxRounds(events) {
				t.Fatalf("got %d rounds, want at most %d", r.Rounds, maxRounds(events))
			}
		})
	}
}

// TestDivergenceInDiscardedEventsIsRange changes an event that the ledgers no longer keep. They
// have only digests of ranges of such events, so the agreement can only find the range.
func TestDivergenceInDiscardedEventsIsRange(t *testing.T) {
	const changed, maxRange = 5000, 128
	r := run(t, Scenario{
		Ranks: 512, History: History(100_000, 3), Kept: 1024,
		Deviations: []Deviation{{Ranks: []int{9}, Position: changed, Change: Resize}},
	})
	d := r.Outcome.Divergence
	if d == nil || d.Position > changed || d.Last < changed || d.Last-d.Position >= maxRange {
		t.Fatalf("got %v, want a range of at most %d events with event %d", d, maxRange, changed)
	}
}

// TestReportListsMissingRanks lets some ranks take no part, first in an agreement without a
// deviation and then with one.
func TestReportListsMissingRanks(t *testing.T) {
	r := run(t, Scenario{Ranks: 1000, History: History(1000, 4), Missing: []int{0, 17, 18, 999}})
	if got := ranklist.Spans(r.Outcome.Absent); got != "0,17-18,999" || r.Outcome.Divergence != nil {
		t.Fatalf("got absent ranks %q, divergence %v; want 0,17-18,999 and none",
			got, r.Outcome.Divergence)
	}
	r = run(t, Scenario{
		Ranks: 1000, History: History(1000, 4), Missing: []int{5},
		Deviations: []Deviation{{Ranks: []int{6}, Position: 10, Change: Drop}},
	})
	d := r.Outcome.Divergence
	if d == nil || ranklist.Spans(d.Absent) != "5" || ranklist.Spans(d.Deviant) != "6" {
		t.Fatalf("got %v, want absent rank 5 and deviant rank 6", d)
	}
}

func TestInvalidScenarioIsRefused(t *testing.T) {
	if _, err := RunAgreement(Scenario{Ranks: 1, Missing: []int{0}}); !errors.Is(
		err, agreement.ErrProtocol) {
		t.Errorf("RunAgreement with only a missing rank = %v; want ErrProtocol", err)
	}
	s := Scenario{Ranks: 1, Deviations: []Deviation{{Position: 1, Change: Drop}}}
	if _, err := RunAgreement(s); err == nil {
		t.Error("RunAgreement with a deviation beyond the end of the history = nil; want an error")
	}
}

// TestAllRanksReachSameOutcome runs random scenarios. RunAgreement checks that all ranks reach the
// same outcome. The test checks that the outcome lists the absent ranks, and that ranks without
// deviations do not diverge.
func TestAllRanksReachSameOutcome(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.IntRange(2, 60).Draw(rt, "ranks")
		s := Scenario{Ranks: ranks, History: History(rapid.IntRange(1, 800).Draw(rt, "events"), 5)}
		deviant := map[int]bool{}
		for range rapid.IntRange(0, 4).Draw(rt, "deviations") {
			rank := rapid.IntRange(0, ranks-1).Draw(rt, "rank")
			deviant[rank] = true
			s.Deviations = append(s.Deviations, Deviation{
				Ranks:    []int{rank},
				Position: rapid.IntRange(0, len(s.History)-1).Draw(rt, "position"),
				Change:   Resize,
			})
		}
		s.Missing = rapid.SliceOfNDistinct(
			rapid.IntRange(0, ranks-1), 0, ranks-1, rapid.ID).Draw(rt, "missing")
		slices.Sort(s.Missing)
		r := run(t, s)
		if !slices.Equal(r.Outcome.Absent, s.Missing) {
			rt.Fatalf("got absent ranks %v, want %v", r.Outcome.Absent, s.Missing)
		}
		for _, rank := range s.Missing {
			delete(deviant, rank)
		}
		if len(deviant) == 0 && r.Outcome.Divergence != nil {
			rt.Fatalf("got divergence %v between identical ranks", r.Outcome.Divergence)
		}
	})
}

// TestRoundsAreLogarithmicInEvents changes the event in the middle of histories of several
// lengths.
func TestRoundsAreLogarithmicInEvents(t *testing.T) {
	maxRoundsByEvents := map[int]int{10: 3, 100: 4, 1000: 5, 10_000: 6, 60_000: 6}
	for events, want := range maxRoundsByEvents {
		r := run(t, Scenario{
			Ranks: 64, History: History(events, 6),
			Deviations: []Deviation{{Ranks: []int{1}, Position: events / 2, Change: Resize}},
		})
		if r.Rounds > want {
			t.Errorf("%d events: got %d rounds, want at most %d", events, r.Rounds, want)
		}
	}
}

func TestHistoryIsReproducible(t *testing.T) {
	a, b := History(5000, 8), History(5000, 8)
	if !slices.Equal(a, b) || slices.Equal(a, History(5000, 9)) {
		t.Fatal("History(5000, 8) differs between calls or is the same as History(5000, 9)")
	}
	count := map[event.Kind]int{}
	for _, e := range a {
		count[e.Kind]++
	}
	if len(a) != 5000 || count[event.KindSegment] == 0 || count[event.KindFree] < 1000 {
		t.Fatalf("got %d events of kinds %v, want 5000 with segments and at least 1000 frees",
			len(a), count)
	}
}

func BenchmarkAgreement(b *testing.B) {
	history := History(100_000, 1)
	for _, ranks := range []int{8, 64, 512, 4096} {
		for name, deviations := range map[string][]Deviation{
			"agree":  nil,
			"differ": {{Ranks: []int{ranks / 2}, Position: 70_000, Change: Resize}},
		} {
			b.Run(fmt.Sprintf("%s/ranks=%d", name, ranks), func(b *testing.B) {
				var r Result
				for b.Loop() {
					r = run(b, Scenario{Ranks: ranks, History: history, Deviations: deviations})
				}
				b.ReportMetric(float64(r.Rounds), "rounds")
				b.ReportMetric(float64(r.Bytes)/float64(ranks), "bytes/rank")
			})
		}
	}
}

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
)

// In an agreement, ranks find out whether they all made the same allocations, which are the events
// of their histories. The first number of History is the number of events, the second a seed. The
// seeds have no meaning.

// run runs an agreement of a scenario. It fails the test if there is no outcome.
func run(t testing.TB, s Scenario) Result {
	t.Helper()
	r, err := RunAgreement(s)
	if err != nil {
		t.Fatal(err)
	}

	return r
}

// maxRounds returns the maximum number of rounds that find the first difference of histories. In
// the first round, ranks compare digests (hashes) of their histories, and in the last one, the
// events that differ. The rounds between search among events+1 positions. Each leaves one of 16
// parts.
func maxRounds(events int) int {
	const parts = 16
	n := 2 // the first and the last round
	for remaining := events + 1; remaining > 1; remaining = (remaining + parts - 1) / parts {
		n++
	}

	return n
}

// Test4096RanksAgreeInOneRound runs an agreement of ranks with equal histories. They must find that
// with one small message each, although the histories are long.
func Test4096RanksAgreeInOneRound(t *testing.T) {
	r := run(t, Scenario{Ranks: 4096, History: History(100_000, 1)})
	if r.Outcome.Divergence != nil || r.Rounds != 1 {
		t.Fatalf("got %d rounds, divergence %v; want 1 round, no divergence",
			r.Rounds, r.Outcome.Divergence)
	}

	const maxPayloadBytes = 200 // far below the size of the events
	if r.Largest > maxPayloadBytes {
		t.Fatalf("largest payload has %d bytes, want at most %d", r.Largest, maxPayloadBytes)
	}
}

// TestReportListsDeviatingRank changes the history of one of 4096 ranks. The agreement must find
// the rank and the changed event.
func TestReportListsDeviatingRank(t *testing.T) {
	const events, changed = 100_000, 77_777 // changed is the index of the changed event
	const ranks, deviant = 4096, 3001
	history := History(events, 2)
	for name, change := range map[string]Change{
		"resize": Resize, "drop": Drop, "repeat": Repeat, "stop": Stop,
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, Scenario{
				Ranks: ranks, History: history,
				Deviations: []Deviation{
					{Ranks: []int{deviant}, Position: changed, Change: change},
				},
			})
			d := r.Outcome.Divergence
			if d == nil || d.Kind != agreement.KindPlacement {
				t.Fatalf("got divergence %v, want one of the kind placement", d)
			}

			if !slices.Equal(d.Deviant, []int{deviant}) {
				t.Fatalf("got deviant ranks %v, want %d", d.Deviant, deviant)
			}

			if d.Position != d.Last {
				t.Fatalf("got a difference at events %d to %d, want a single event", d.Position, d.Last)
			}

			// The first difference is one position later if the event is repeated, or if a dropped
			// event is followed by an identical one.
			if d.Position != changed && d.Position != changed+1 {
				t.Fatalf("got a difference at event %d, want %d or %d", d.Position, changed, changed+1)
			}

			if want := maxRounds(events); r.Rounds > want {
				t.Fatalf("got %d rounds, want at most %d", r.Rounds, want)
			}
		})
	}
}

// TestDivergenceInDiscardedEventsIsRange changes an event that the ledgers no longer keep. They
// have only digests of ranges of such events, so the agreement can only find the range.
func TestDivergenceInDiscardedEventsIsRange(t *testing.T) {
	const (
		events   = 100_000
		changed  = 5000 // index of the changed event
		kept     = 1024 // a ledger keeps these last events
		maxRange = 128  // number of events with one digest
	)
	r := run(t, Scenario{
		Ranks: 512, History: History(events, 3), Kept: kept,
		Deviations: []Deviation{{Ranks: []int{9}, Position: changed, Change: Resize}},
	})
	d := r.Outcome.Divergence
	if d == nil {
		t.Fatal("got no divergence")
	}

	if changed < d.Position || changed > d.Last {
		t.Errorf("got a difference at events %d to %d, which does not include event %d", d.Position,
			d.Last, changed)
	}

	if length := d.Last - d.Position + 1; length > maxRange {
		t.Errorf("got a range of %d events, want at most %d", length, maxRange)
	}
}

// TestReportListsMissingRanks lets some ranks take no part, first in an agreement without a
// deviation and then with one.
func TestReportListsMissingRanks(t *testing.T) {
	const ranks = 1000
	history := History(1000, 4)
	missing := []int{0, 17, 18, ranks - 1}
	r := run(t, Scenario{Ranks: ranks, History: history, Missing: missing})
	if !slices.Equal(r.Outcome.Absent, missing) {
		t.Errorf("got absent ranks %v, want %v", r.Outcome.Absent, missing)
	}

	if r.Outcome.Divergence != nil {
		t.Errorf("got divergence %v between equal histories", r.Outcome.Divergence)
	}

	const missingRank, deviant = 5, 6
	r = run(t, Scenario{
		Ranks: ranks, History: history, Missing: []int{missingRank},
		Deviations: []Deviation{{Ranks: []int{deviant}, Position: 10, Change: Drop}},
	})
	d := r.Outcome.Divergence
	if d == nil {
		t.Fatal("got no divergence")
	}

	if !slices.Equal(d.Absent, []int{missingRank}) {
		t.Errorf("got absent ranks %v, want %d", d.Absent, missingRank)
	}

	if !slices.Equal(d.Deviant, []int{deviant}) {
		t.Errorf("got deviant ranks %v, want %d", d.Deviant, deviant)
	}
}

func TestInvalidScenarioIsRefused(t *testing.T) {
	onlyMissing := Scenario{Ranks: 1, Missing: []int{0}}
	if _, err := RunAgreement(onlyMissing); !errors.Is(err, agreement.ErrProtocol) {
		t.Errorf("RunAgreement with only a missing rank = %v; want ErrProtocol", err)
	}

	beyondEnd := Scenario{Ranks: 1, Deviations: []Deviation{{Position: 1, Change: Drop}}}
	if _, err := RunAgreement(beyondEnd); err == nil {
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
		deviant := map[int]bool{} // ranks with a deviation that take part
		for range rapid.IntRange(0, 4).Draw(rt, "deviations") {
			rank := rapid.IntRange(0, ranks-1).Draw(rt, "rank")
			deviant[rank] = true
			s.Deviations = append(s.Deviations, Deviation{
				Ranks:    []int{rank},
				Position: rapid.IntRange(0, len(s.History)-1).Draw(rt, "position"),
				Change:   Resize,
			})
		}

		const minMissing = 0
		maxMissing := ranks - 1
		s.Missing = rapid.SliceOfNDistinct(rapid.IntRange(0, ranks-1), minMissing, maxMissing,
			rapid.ID).Draw(rt, "missing")
		slices.Sort(s.Missing)
		r, err := RunAgreement(s)
		if err != nil {
			rt.Fatal(err)
		}

		if !slices.Equal(r.Outcome.Absent, s.Missing) {
			rt.Fatalf("got absent ranks %v, want %v", r.Outcome.Absent, s.Missing)
		}

		for _, rank := range s.Missing {
			delete(deviant, rank)
		}

		if len(deviant) == 0 && r.Outcome.Divergence != nil {
			rt.Fatalf("got divergence %v between equal histories", r.Outcome.Divergence)
		}
	})
}

// TestRoundsAreLogarithmicInEvents changes the event in the middle of histories of several
// lengths. The limits are those of maxRounds, written out.
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

// TestHistoryIsReproducible checks that a history depends on its seed only, and that it has events
// of all kinds.
func TestHistoryIsReproducible(t *testing.T) {
	const events, seed = 5000, 8
	history := History(events, seed)
	if !slices.Equal(history, History(events, seed)) {
		t.Error("two calls with the same seed return different histories")
	}

	if slices.Equal(history, History(events, seed+1)) {
		t.Error("calls with different seeds return the same history")
	}

	if len(history) != events {
		t.Errorf("got %d events, want %d", len(history), events)
	}

	counts := map[event.Kind]int{}
	for _, e := range history {
		counts[e.Kind]++
	}

	if counts[event.KindSegment] == 0 {
		t.Error("the history has no new segment")
	}

	const minFrees = events / 5 // with few live blocks, one step in three frees a block
	if n := counts[event.KindFree]; n < minFrees {
		t.Errorf("the history has %d frees, want at least %d", n, minFrees)
	}
}

// BenchmarkAgreement measures an agreement of ranks with equal histories, and one in which a rank
// deviates.
func BenchmarkAgreement(b *testing.B) {
	const events, changed = 100_000, 70_000 // changed is the index of the changed event
	history := History(events, 1)
	for _, ranks := range []int{8, 64, 512, 4096} {
		for name, deviations := range map[string][]Deviation{
			"agree":  nil,
			"differ": {{Ranks: []int{ranks / 2}, Position: changed, Change: Resize}},
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

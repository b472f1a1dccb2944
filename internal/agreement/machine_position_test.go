package agreement

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"symmem/event"
	"symmem/internal/ledger"
)

// In these tests, a history is the list of a pool's events on one rank. newLedger(n, history)
// returns the ledger that keeps the last n events of it, or all for 0. newGroup returns a machine
// for each ledger, and runAll lets these machines agree.

// maxRounds returns the maximum number of rounds that an agreement on n events needs. In the first
// round, ranks send votes: the lengths and digests (hashes) of their histories. If these differ,
// ranks search the first difference, which can be at n+1 positions. In each round, they compare
// digests at maxProbes positions. In the last round, they send the events found.
func maxRounds(n int) int {
	const voteRounds, eventRounds = 1, 1
	const parts = maxProbes + 1 // that maxProbes positions divide a range into
	probeRounds := 0
	for positions := n + 1; positions > 1; probeRounds++ {
		positions = (positions + parts - 1) / parts // rounded up
	}

	return voteRounds + probeRounds + eventRounds
}

// changes contains functions that return a history changed at event p. They may modify events.
var changes = map[string]func(events []event.Event, p int) []event.Event{
	"a different size": func(events []event.Event, p int) []event.Event {
		events[p].Size += 512
		return events
	},
	"an extra event": func(events []event.Event, p int) []event.Event {
		return slices.Insert(events, p, event.Event{Kind: event.KindPark, Size: 1, Requested: 1})
	},
	"a missing event": func(events []event.Event, p int) []event.Event {
		return slices.Delete(events, p, p+1)
	},
	"an earlier end": func(events []event.Event, p int) []event.Event { return events[:p] },
}

// firstDifference returns the first position at which a and b differ. If there is none, it returns
// the length of the shorter history.
func firstDifference(a, b []event.Event) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}

	return min(len(a), len(b))
}

// The history of one rank differs from that of all others. The ranks have already agreed on the
// events before an earlier position. All must report the first difference, after few rounds.
func TestFirstDifferingEventIsFound(t *testing.T) {
	names := slices.Sorted(maps.Keys(changes)) // in the same order in every run
	rapid.Check(t, func(t *rapid.T) {
		rankCount := rapid.IntRange(1, 9).Draw(t, "ranks")
		length := rapid.IntRange(1, 5000).Draw(t, "events")
		history := randomHistory(newRand(rapid.Uint64().Draw(t, "history")), length)
		position := rapid.IntRange(0, length-1).Draw(t, "position")
		changedRank := rapid.IntRange(0, rankCount-1).Draw(t, "rank")
		change := rapid.SampledFrom(names).Draw(t, "change")
		agreedPosition := rapid.IntRange(0, position).Draw(t, "agreed position")

		changedHistory := changes[change](slices.Clone(history), position)
		ledgers := make([]*ledger.Ledger, rankCount)
		for i := range ledgers {
			events := history
			if i == changedRank {
				events = changedHistory
			}

			ledgers[i] = newLedger(0, events)
			agree(ledgers[i], uint64(agreedPosition))
		}

		outcomes, rounds := runAll(t, newGroup(t, ModeExact, ledgers), noAbsentRanks)
		for i := range outcomes {
			if diff := cmp.Diff(outcomes[0], outcomes[i]); diff != "" {
				t.Fatalf("outcomes differ (-rank 0 +rank %d):\n%s", i, diff)
			}
		}

		searched := length - agreedPosition
		if limit := maxRounds(searched); rounds > limit {
			t.Fatalf("got %d rounds for %d events, want at most %d", rounds, searched, limit)
		}

		d := outcomes[0].Divergence
		if rankCount == 1 {
			if d != nil {
				t.Fatalf("got divergence %v in a group of one rank, want none", d)
			}

			return
		}

		checkFirstDifference(t, d, history, changedHistory, changedRank)
		if rankCount == 2 {
			return // neither rank has a majority
		}

		if !slices.Equal(d.Deviant, []int{changedRank}) {
			t.Fatalf("got deviant ranks %v, want [%d]", d.Deviant, changedRank)
		}
	})
}

// agree records in l that all ranks have the same events before position.
func agree(l *ledger.Ledger, position uint64) {
	digest, _ := l.DigestAt(position) // known, because the ledgers of these tests keep all events
	l.Agree(position, digest)
}

// checkFirstDifference checks the divergence of a group in which changedRank has changedHistory
// and all others have history. It fails the test if d has another position, or a text that does
// not describe the event of its ranks.
func checkFirstDifference(
	t *rapid.T, d *DivergenceError, history, changedHistory []event.Event, changedRank int,
) {
	position := firstDifference(history, changedHistory)
	if d == nil || d.Kind != KindPlacement {
		t.Fatalf("got %+v, want a divergence of kind %v", d, KindPlacement)
	}

	if d.Position != uint64(position) || d.Last != uint64(position) {
		t.Fatalf("got a divergence at events %d to %d, want event %d", d.Position, d.Last, position)
	}

	wantText := func(events []event.Event) string {
		if position < len(events) {
			return events[position].String()
		}

		return fmt.Sprintf("no event: history ends at %d", len(events))
	}
	for _, v := range d.Variants {
		for _, r := range v.Ranks {
			events := history
			if r == changedRank {
				events = changedHistory
			}

			if v.Text != wantText(events) {
				t.Fatalf("got text %q for rank %d, want %q", v.Text, r, wantText(events))
			}
		}
	}
}

// TestPrefixIgnoresEventsAfterCommonPosition gives ranks histories of different lengths. Rank 0
// has a different event at a position that other histories may not reach. It must be reported only
// if all ranks have an event at that position.
func TestPrefixIgnoresEventsAfterCommonPosition(t *testing.T) {
	const maxLength = 3000
	rapid.Check(t, func(t *rapid.T) {
		rankCount := rapid.IntRange(2, 6).Draw(t, "ranks")
		history := randomHistory(newRand(rapid.Uint64().Draw(t, "history")), maxLength)
		position := rapid.IntRange(0, maxLength-1).Draw(t, "position")
		ledgers := make([]*ledger.Ledger, rankCount)
		commonLength := maxLength
		for i := range ledgers {
			length := rapid.IntRange(0, maxLength).Draw(t, "length")
			commonLength = min(commonLength, length)
			events := slices.Clone(history[:length])
			if i == 0 && position < length {
				events[position].Offset++
			}

			ledgers[i] = newLedger(0, events)
		}

		outcomes, _ := runAll(t, newGroup(t, ModePrefix, ledgers), noAbsentRanks)
		d := outcomes[0].Divergence
		if position < commonLength {
			if d == nil || d.Position != uint64(position) {
				t.Fatalf("got %+v, want a divergence at event %d", d, position)
			}

			return
		}

		if d != nil {
			t.Fatalf("got divergence %v, want none in the %d common events", d, commonLength)
		}

		digest, _ := ledgers[0].DigestAt(uint64(commonLength))
		want := []AgreedPrefix{
			{Ledger: groupLedger, Position: uint64(commonLength), Digest: digest},
		}
		if diff := cmp.Diff(want, outcomes[0].Agreed); diff != "" {
			t.Fatalf("agreed prefixes differ (-want +got):\n%s", diff)
		}
	})
}

// TestDroppedEventsAreReportedAsRange uses ledgers that keep only the latest events. Of earlier
// ones, they keep a digest every 64 events, because all histories of this test are short.
func TestDroppedEventsAreReportedAsRange(t *testing.T) {
	const digestDistance = 64
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.IntRange(200, 20000).Draw(t, "events")
		history := randomHistory(newRand(rapid.Uint64().Draw(t, "history")), length)
		position := rapid.IntRange(0, length-1).Draw(t, "position")
		changedHistory := slices.Clone(history)
		changedHistory[position].Size++
		ledgers := []*ledger.Ledger{
			newLedger(64, history),
			newLedger(1024, history),
			newLedger(64, changedHistory),
		}
		outcomes, rounds := runAll(t, newGroup(t, ModeExact, ledgers), noAbsentRanks)
		d := outcomes[1].Divergence
		if d == nil || d.Position > uint64(position) || d.Last < uint64(position) {
			t.Fatalf("got %+v, want a range with event %d", d, position)
		}

		if d.Last-d.Position > digestDistance {
			t.Fatalf("got events %d to %d, want a distance of at most %d", d.Position, d.Last,
				digestDistance)
		}

		if !slices.Equal(d.Deviant, []int{2}) {
			t.Fatalf("got deviant ranks %v, want [2]", d.Deviant)
		}

		if limit := maxRounds(length); rounds > limit {
			t.Fatalf("got %d rounds for %d events, want at most %d", rounds, length, limit)
		}
	})
}

// Ranks 0 and 1 have agreed with each other up to event 400, and so have ranks 2 and 3. But the
// histories of the two pairs differ at event 10. An agreement of all four must find it.
func TestAgreedPrefixesOfOtherGroupsAreNotTrusted(t *testing.T) {
	history := randomHistory(newRand(7), 500)
	changedHistory := slices.Clone(history)
	changedHistory[10].Size++
	ledgers := []*ledger.Ledger{
		newLedger(0, history), newLedger(0, history),
		newLedger(0, changedHistory), newLedger(0, changedHistory),
	}
	for _, l := range ledgers {
		agree(l, 400)
	}

	outcomes, _ := runAll(t, newGroup(t, ModeExact, ledgers), noAbsentRanks)
	d := outcomes[3].Divergence
	if d == nil || d.Position != 10 {
		t.Fatalf("got %+v, want a divergence at event 10", d)
	}

	if len(d.Deviant) != 0 {
		t.Fatalf("got deviant ranks %v, want none, because neither pair is a majority", d.Deviant)
	}
}

// The history of rank 2 differs in pools 10 and 20, and is only shorter in pool 30. The pool with
// the lowest ID must be reported, in whatever order Config lists the pools.
func TestFirstDifferingPoolIsReported(t *testing.T) {
	history := randomHistory(newRand(8), 300)
	changedLate := slices.Clone(history)
	changedLate[250].Size++
	changedEarly := slices.Clone(history)
	changedEarly[3].Size++
	var machines []*Machine
	for rank := range 3 {
		pool10, pool20, pool30 := history, history, history
		if rank == 2 {
			pool10, pool20, pool30 = changedEarly, changedLate, history[:290]
		}

		machines = append(machines, mustNew(t, Config{
			Rank: rank, Ranks: 3, Mode: ModePrefix, Group: "world",
			Ledgers: []Ledger{
				{ID: 30, Source: newLedger(0, pool30)},
				{ID: 20, Source: newLedger(0, pool20)},
				{ID: 10, Source: newLedger(0, pool10)},
			},
		}))
	}

	outcomes, _ := runAll(t, machines, noAbsentRanks)
	if d := outcomes[0].Divergence; d == nil || d.Ledger != 10 || d.Position != 3 {
		t.Fatalf("got %+v, want a divergence in pool 10 at event 3", d)
	}
}

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

// maxRounds returns the maximum number of rounds that an agreement on n events needs: one for the
// votes, one for the differing events, and in between those that search n+1 possible positions of
// the first difference. Each of these divides the number of possible positions by maxProbes+1.
func maxRounds(n int) int {
	const voteRounds, eventRounds = 1, 1
	probeRounds := 0
	for positions := n + 1; positions > 1; positions = (positions + maxProbes) / (maxProbes + 1) {
		probeRounds++
	}
	return voteRounds + probeRounds + eventRounds
}

// changes contains functions that return a changed history. They change it at event p, and may
// modify their argument.
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

// firstDifference returns the first position at which a and b differ, or the length of the shorter
// history.
func firstDifference(a, b []event.Event) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func TestFirstDifferingEventIsFound(t *testing.T) {
	names := slices.Sorted(maps.Keys(changes)) // in the same order in every run
	rapid.Check(t, func(rt *rapid.T) {
		rankCount := rapid.IntRange(1, 9).Draw(rt, "ranks")
		length := rapid.IntRange(1, 5000).Draw(rt, "events")
		history := randomHistory(newRand(rapid.Uint64().Draw(rt, "history")), length)
		position := rapid.IntRange(0, length-1).Draw(rt, "position")
		changedRank := rapid.IntRange(0, rankCount-1).Draw(rt, "rank")
		change := rapid.SampledFrom(names).Draw(rt, "change")
		agreedPosition := rapid.IntRange(0, position).Draw(rt, "agreed position")

		changedHistory := changes[change](slices.Clone(history), position)
		ledgers := make([]*ledger.Ledger, rankCount)
		for i := range ledgers {
			events := history
			if i == changedRank {
				events = changedHistory
			}
			ledgers[i] = newLedger(0, events)
			digest, _ := ledgers[i].DigestAt(uint64(agreedPosition))
			ledgers[i].Agree(uint64(agreedPosition), digest)
		}
		outcomes, rounds := runAll(t, newGroup(t, ModeExact, ledgers), nil)
		for i := range outcomes {
			if diff := cmp.Diff(outcomes[0], outcomes[i]); diff != "" {
				rt.Fatalf("outcomes of ranks %d and 0 differ:\n%s", i, diff)
			}
		}
		if want := maxRounds(length - agreedPosition); rounds > want {
			rt.Fatalf("got %d rounds for %d events, want at most %d", rounds, length-agreedPosition, want)
		}
		checkFirstDifference(
			rt, outcomes[0].Divergence, rankCount, changedRank, history, changedHistory)
	})
}

// checkFirstDifference checks the divergence of a group in which one rank has changedHistory and
// all others have history.
func checkFirstDifference(
	rt *rapid.T, d *DivergenceError, rankCount, changedRank int,
	history, changedHistory []event.Event,
) {
	if rankCount == 1 {
		if d != nil {
			rt.Fatalf("got divergence %v in a group of one rank, want none", d)
		}
		return
	}
	position := firstDifference(history, changedHistory)
	if d == nil || d.Kind != KindPlacement || d.Position != uint64(position) || d.Last != d.Position {
		rt.Fatalf("got %+v, want a divergence at event %d", d, position)
	}
	// With two ranks, neither has a majority.
	if rankCount > 2 && !slices.Equal(d.Deviant, []int{changedRank}) {
		rt.Fatalf("got deviant ranks %v, want %d", d.Deviant, changedRank)
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
				rt.Fatalf("got text %q for rank %d, want %q", v.Text, r, wantText(events))
			}
		}
	}
}

// TestPrefixIgnoresEventsAfterCommonPosition gives ranks histories of different lengths. Rank 0
// has a different event at a position that other histories may not reach.
func TestPrefixIgnoresEventsAfterCommonPosition(t *testing.T) {
	const maxLength = 3000
	rapid.Check(t, func(rt *rapid.T) {
		rankCount := rapid.IntRange(2, 6).Draw(rt, "ranks")
		history := randomHistory(newRand(rapid.Uint64().Draw(rt, "history")), maxLength)
		position := rapid.IntRange(0, maxLength-1).Draw(rt, "position")
		ledgers := make([]*ledger.Ledger, rankCount)
		commonLength := maxLength
		for i := range ledgers {
			length := rapid.IntRange(0, maxLength).Draw(rt, "length")
			commonLength = min(commonLength, length)
			events := slices.Clone(history[:length])
			if i == 0 && position < length {
				events[position].Offset++
			}
			ledgers[i] = newLedger(0, events)
		}
		outcomes, _ := runAll(t, newGroup(t, ModePrefix, ledgers), nil)
		v := outcomes[0]
		if position >= commonLength {
			digest, _ := ledgers[0].DigestAt(uint64(commonLength))
			want := []AgreedPrefix{{Ledger: 1, Position: uint64(commonLength), Digest: digest}}
			if diff := cmp.Diff(want, v.Agreed); diff != "" || v.Divergence != nil {
				rt.Fatalf("got divergence %v, want none; agreed prefixes differ (-want +got):\n%s",
					v.Divergence, diff)
			}
			return
		}
		if v.Divergence == nil || v.Divergence.Position != uint64(position) {
			rt.Fatalf("got %v, want a divergence at event %d", v.Divergence, position)
		}
	})
}

// TestDroppedEventsAreReportedAsRange uses ledgers that keep only the latest events.
func TestDroppedEventsAreReportedAsRange(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		length := rapid.IntRange(200, 20000).Draw(rt, "events")
		history := randomHistory(newRand(rapid.Uint64().Draw(rt, "history")), length)
		position := rapid.IntRange(0, length-1).Draw(rt, "position")
		changedHistory := slices.Clone(history)
		changedHistory[position].Size++
		ledgers := []*ledger.Ledger{
			newLedger(64, history),
			newLedger(1024, history),
			newLedger(64, changedHistory),
		}
		outcomes, rounds := runAll(t, newGroup(t, ModeExact, ledgers), nil)
		d := outcomes[1].Divergence
		if d == nil || d.Position > uint64(position) || d.Last < uint64(position) ||
			d.Last-d.Position > 64 {
			rt.Fatalf("got %+v, want a range of at most 64 events with event %d", d, position)
		}
		if !slices.Equal(d.Deviant, []int{2}) || rounds > maxRounds(length) {
			rt.Fatalf("got deviant ranks %v after %d rounds, want rank 2 after at most %d",
				d.Deviant, rounds, maxRounds(length))
		}
	})
}

func TestAgreedPrefixesOfOtherGroupsAreNotTrusted(t *testing.T) {
	// Ranks 0 and 1 have agreed with each other up to event 400, and so have ranks 2 and 3. But the
	// histories of the two pairs differ at event 10.
	history := randomHistory(newRand(7), 500)
	changedHistory := slices.Clone(history)
	changedHistory[10].Size++
	ledgers := make([]*ledger.Ledger, 4)
	for i := range ledgers {
		ledgers[i] = newLedger(0, [][]event.Event{history, changedHistory}[i/2])
		digest, _ := ledgers[i].DigestAt(400)
		ledgers[i].Agree(400, digest)
	}
	outcomes, _ := runAll(t, newGroup(t, ModeExact, ledgers), nil)
	if d := outcomes[3].Divergence; d == nil || d.Position != 10 || len(d.Deviant) != 0 {
		t.Fatalf("got %+v, want a divergence at event 10 without deviant ranks", d)
	}
}

func TestFirstDifferingPoolIsReported(t *testing.T) {
	history := randomHistory(newRand(8), 300)
	changedLate := slices.Clone(history)
	changedLate[250].Size++
	changedEarly := slices.Clone(history)
	changedEarly[3].Size++
	var machines []*Machine
	for rank := range 3 {
		histories := [][]event.Event{history, history, history}
		if rank == 2 {
			histories = [][]event.Event{history[:290], changedLate, changedEarly}
		}
		c := Config{Rank: rank, Ranks: 3, Mode: ModePrefix, Group: "world"}
		for i, events := range histories {
			l := Ledger{ID: uint64(10 * (3 - i)), Source: newLedger(0, events)}
			c.Ledgers = append(c.Ledgers, l)
		}
		machines = append(machines, mustNew(t, c))
	}
	outcomes, _ := runAll(t, machines, nil)
	if d := outcomes[0].Divergence; d == nil || d.Ledger != 10 || d.Position != 3 {
		t.Fatalf("got %+v, want a divergence in pool 10 at event 3", d)
	}
}

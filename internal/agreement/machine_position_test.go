package agreement

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"symmem/event"
	"symmem/internal/ledger"
)

// maxRounds returns the maximum number of rounds for a history of n events: one round for the
// votes, the rounds that it takes to search n+1 outcomes, and one round for the events.
func maxRounds(n int) int {
	k := 0
	for remaining := n + 1; remaining > 1; remaining = (remaining + maxProbes) / (maxProbes + 1) {
		k++
	}
	return 1 + k + 1
}

// changes holds functions, by name, that change a history at event p.
var changes = map[string]func([]event.Event, int) []event.Event{
	"a different size": func(h []event.Event, p int) []event.Event {
		h[p].Size += 512
		return h
	},
	"an extra event": func(h []event.Event, p int) []event.Event {
		return slices.Insert(h, p, event.Event{Kind: event.KindPark, Size: 1, Requested: 1})
	},
	"a missing event": func(h []event.Event, p int) []event.Event {
		return slices.Delete(h, p, p+1)
	},
	"an earlier end": func(h []event.Event, p int) []event.Event { return h[:p] },
}

func firstDifference(a, b []event.Event) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func TestFirstDifferingEventIsFound(t *testing.T) {
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range changes {
			if !yield(name) {
				return
			}
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(rt, "ranks")
		length := rapid.IntRange(1, 5000).Draw(rt, "events")
		base := randomHistory(newRand(rapid.Uint64().Draw(rt, "history")), length)
		at := rapid.IntRange(0, length-1).Draw(rt, "position")
		rank := rapid.IntRange(0, n-1).Draw(rt, "rank")
		change := rapid.SampledFrom(names).Draw(rt, "change")
		mark := rapid.IntRange(0, at).Draw(rt, "mark")

		other := changes[change](slices.Clone(base), at)
		ledgers := make([]*ledger.Ledger, n)
		for i := range ledgers {
			events := base
			if i == rank {
				events = other
			}
			ledgers[i] = ledgerOf(0, events)
			digest, _ := ledgers[i].DigestAt(uint64(mark))
			ledgers[i].Agree(uint64(mark), digest)
		}
		outcomes, rounds := runAll(t, newGroup(t, ModeExact, ledgers), nil)
		for i := range outcomes {
			if diff := cmp.Diff(outcomes[0], outcomes[i]); diff != "" {
				rt.Fatalf("outcomes of ranks %d and 0 differ:\n%s", i, diff)
			}
		}
		if want := maxRounds(length - mark); rounds > want {
			rt.Fatalf("got %d rounds for %d events, want at most %d", rounds, length-mark, want)
		}
		checkFirst(rt, outcomes[0], n, rank, firstDifference(base, other), base, other)
	})
}

func checkFirst(
	rt *rapid.T, v *Outcome, n, rank, at int, base, other []event.Event,
) {
	if n == 1 {
		if v.Divergence != nil {
			rt.Fatalf("a single rank diverged: %v", v.Divergence)
		}
		return
	}
	d := v.Divergence
	if d == nil || d.Kind != KindPlacement || d.Position != uint64(at) || d.Last != d.Position {
		rt.Fatalf("got %+v, want a divergence at event %d", d, at)
	}
	if n > 2 && !slices.Equal(d.Deviant, []int{rank}) {
		rt.Fatalf("got deviant ranks %v, want %d", d.Deviant, rank)
	}
	want := func(h []event.Event) string {
		if at < len(h) {
			return h[at].String()
		}
		return fmt.Sprintf("no event: history ends at %d", len(h))
	}
	for _, v := range d.Variants {
		for _, r := range v.Ranks {
			h := base
			if r == rank {
				h = other
			}
			if v.Text != want(h) {
				rt.Fatalf("report has %q for rank %d, want %q", v.Text, r, want(h))
			}
		}
	}
}

func TestPrefixIgnoresEventsAfterCommonPosition(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(rt, "ranks")
		base := randomHistory(newRand(rapid.Uint64().Draw(rt, "history")), 3000)
		at := rapid.IntRange(0, 2999).Draw(rt, "position")
		ledgers := make([]*ledger.Ledger, n)
		common := 3000
		for i := range ledgers {
			length := rapid.IntRange(0, 3000).Draw(rt, "length")
			common = min(common, length)
			events := slices.Clone(base[:length])
			if i == 0 && at < length {
				events[at].Offset++
			}
			ledgers[i] = ledgerOf(0, events)
		}
		outcomes, _ := runAll(t, newGroup(t, ModePrefix, ledgers), nil)
		v := outcomes[0]
		if at >= common {
			digest, _ := ledgers[0].DigestAt(uint64(common))
			want := []AgreedPrefix{{Ledger: 1, Position: uint64(common), Digest: digest}}
			if diff := cmp.Diff(want, v.Agreed); diff != "" || v.Divergence != nil {
				rt.Fatalf("got divergence %v, agreed prefixes differ (-want +got):\n%s", v.Divergence, diff)
			}
			return
		}
		if v.Divergence == nil || v.Divergence.Position != uint64(at) {
			rt.Fatalf("got %v, want a divergence at event %d", v.Divergence, at)
		}
	})
}

func TestDroppedEventsAreReportedAsRange(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		length := rapid.IntRange(200, 20000).Draw(rt, "events")
		base := randomHistory(newRand(rapid.Uint64().Draw(rt, "history")), length)
		at := rapid.IntRange(0, length-1).Draw(rt, "position")
		other := slices.Clone(base)
		other[at].Size++
		ledgers := []*ledger.Ledger{
			ledgerOf(64, base),
			ledgerOf(1024, base),
			ledgerOf(64, other),
		}
		outcomes, rounds := runAll(t, newGroup(t, ModeExact, ledgers), nil)
		d := outcomes[1].Divergence
		if d == nil || d.Position > uint64(at) || d.Last < uint64(at) || d.Last-d.Position > 64 {
			rt.Fatalf("got %+v, want a range of at most 64 events with event %d", d, at)
		}
		if !slices.Equal(d.Deviant, []int{2}) || rounds > maxRounds(length) {
			rt.Fatalf("got deviant ranks %v after %d rounds, want rank 2 after at most %d",
				d.Deviant, rounds, maxRounds(length))
		}
	})
}

func TestAgreedPrefixesOfOtherGroupsAreNotTrusted(t *testing.T) {
	// Ranks 0 and 1 have agreed with each other, and ranks 2 and 3 have agreed with each other.
	// Both pairs have agreed up to the same position, but their histories differ before it.
	base := randomHistory(newRand(7), 500)
	other := slices.Clone(base)
	other[10].Size++
	ledgers := make([]*ledger.Ledger, 4)
	for i := range ledgers {
		ledgers[i] = ledgerOf(0, [][]event.Event{base, other}[i/2])
		digest, _ := ledgers[i].DigestAt(400)
		ledgers[i].Agree(400, digest)
	}
	outcomes, _ := runAll(t, newGroup(t, ModeExact, ledgers), nil)
	if d := outcomes[3].Divergence; d == nil || d.Position != 10 || len(d.Deviant) != 0 {
		t.Fatalf("got %+v, want a divergence at event 10 without deviant ranks", d)
	}
}

func TestFirstDifferingPoolIsReported(t *testing.T) {
	base := randomHistory(newRand(8), 300)
	later := slices.Clone(base)
	later[250].Size++
	early := slices.Clone(base)
	early[3].Size++
	var machines []*Machine
	for rank := range 3 {
		histories := [][]event.Event{base, base, base}
		if rank == 2 {
			histories = [][]event.Event{base[:290], later, early}
		}
		c := Config{Rank: rank, Ranks: 3, Mode: ModePrefix, Group: "world"}
		for i, h := range histories {
			l := Ledger{ID: uint64(10 * (3 - i)), Source: ledgerOf(0, h)}
			c.Ledgers = append(c.Ledgers, l)
		}
		machines = append(machines, mustNew(t, c))
	}
	outcomes, _ := runAll(t, machines, nil)
	if d := outcomes[0].Divergence; d == nil || d.Ledger != 10 || d.Position != 3 {
		t.Fatalf("got %+v, want a divergence in pool 10 at event 3", d)
	}
}

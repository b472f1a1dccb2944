package agreement

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"symmem/event"
	"symmem/internal/ledger"
)

func TestNewRefusesInvalidConfigs(t *testing.T) {
	source := ledger.New(0)
	cases := map[string]Config{
		"no ranks":               {},
		"a rank out of range":    {Rank: 2, Ranks: 2},
		"a negative rank":        {Rank: -1, Ranks: 2},
		"names for more ranks":   {Ranks: 2, Names: Names{Members: []int{3}}},
		"an unknown mode":        {Ranks: 1, Mode: 7},
		"a tag that is too long": {Ranks: 1, Tag: string(make([]byte, MaxTag+1))},
		"one pool twice": {Ranks: 1, Ledgers: []Ledger{
			{ID: 4, Source: source}, {ID: 4, Source: source},
		}},
		"too many pools": {Ranks: 1, Ledgers: make([]Ledger, MaxLedgers+1)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := New(c); err == nil {
				t.Fatalf("New(%+v) succeeded, want an error", c)
			}
		})
	}
}

// growingLedger appends an event in each call of DigestAt, like a pool that allocates
// concurrently.
type growingLedger struct{ *ledger.Ledger }

func (l growingLedger) DigestAt(position uint64) (uint64, bool) {
	digest, ok := l.Ledger.DigestAt(position)
	l.Append(&event.Event{Kind: event.KindFree, Size: 1}, 0)
	return digest, ok
}

// TestEventsAfterStartAreIgnored ends the history of rank 1 at an event that is different on rank
// 2. The events that growingLedger appends must not be compared.
func TestEventsAfterStartAreIgnored(t *testing.T) {
	history := randomHistory(newRand(5), 1000)
	for _, position := range []int{0, 500, 999} {
		changedHistory := slices.Clone(history)
		changedHistory[position].Stream = 3
		var machines []*Machine
		for rank := range 3 {
			histories := [][]event.Event{history, history[:position], changedHistory}
			l := newLedger(0, histories[rank])
			machines = append(machines, mustNew(t, Config{
				Rank: rank, Ranks: 3, Ledgers: []Ledger{{ID: 1, Source: growingLedger{l}}},
			}))
		}
		outcomes, _ := runAll(t, machines, nil)
		d := outcomes[0].Divergence
		if d == nil || d.Position != uint64(position) || len(d.Variants) != 3 ||
			d.Variants[1].HasEvent {
			t.Fatalf("got %+v, want three variants at event %d, with no event in the second", d, position)
		}
	}
}

// forgetfulLedger is a ledger that keeps no digests.
type forgetfulLedger struct{ *ledger.Ledger }

func (forgetfulLedger) DigestAt(uint64) (uint64, bool) { return 0, false }

func TestEventsDroppedDuringSearchAreReportedAsRange(t *testing.T) {
	history := randomHistory(newRand(6), 900)
	changedHistory := slices.Clone(history)
	changedHistory[700].Size++
	sources := []Source{
		newLedger(0, history), forgetfulLedger{newLedger(0, changedHistory)},
	}
	var machines []*Machine
	for rank, s := range sources {
		machines = append(machines, mustNew(t, Config{
			Rank: rank, Ranks: 2, Ledgers: []Ledger{{ID: 1, Source: s}},
		}))
	}
	outcomes, rounds := runAll(t, machines, nil)
	d := outcomes[1].Divergence
	if d == nil || d.Position > 700 || d.Last < 700 || rounds > 3 {
		t.Fatalf("got %+v after %d rounds, want a range with event 700 after at most 3", d, rounds)
	}
}

func TestRunReturnsErrorsOfExchangeAndContext(t *testing.T) {
	newMachine := func() *Machine {
		l := ledger.New(0)
		return mustNew(t, Config{Ranks: 1, Ledgers: []Ledger{{ID: 1, Source: l}}})
	}
	returnOwn := func(_ context.Context, p []byte) ([][]byte, error) { return [][]byte{p}, nil }
	outcome, err := Run(t.Context(), returnOwn, newMachine())
	if err != nil || outcome.Divergence != nil {
		t.Fatalf("Run with one rank = %+v, %v; want no divergence", outcome, err)
	}
	errExchange := errors.New("broken")
	_, err = Run(t.Context(), func(context.Context, []byte) ([][]byte, error) {
		return nil, errExchange
	}, newMachine())
	if !errors.Is(err, errExchange) {
		t.Errorf("failing exchange: got %v, want %v", err, errExchange)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Run(ctx, func(ctx context.Context, _ []byte) ([][]byte, error) {
		return nil, ctx.Err()
	}, newMachine())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled context: got %v, want context.Canceled", err)
	}
	_, err = Run(t.Context(), func(context.Context, []byte) ([][]byte, error) {
		return [][]byte{{9}}, nil
	}, newMachine())
	if !errors.Is(err, ErrProtocol) {
		t.Errorf("malformed payload: got %v, want ErrProtocol", err)
	}
}

func TestPendingListsDifferByOrderAndContent(t *testing.T) {
	var empty Pending
	lists := []Pending{
		empty, empty.Add(0, 64), empty.Add(0, 65),
		empty.Add(0, 64).Add(1, 64), empty.Add(1, 64).Add(0, 64),
	}
	seen := map[Pending]bool{}
	for _, list := range lists {
		if seen[list] {
			t.Errorf("two different lists of segments have the same value %+v", list)
		}
		seen[list] = true
	}
}

// runAll runs an agreement and returns the outcomes, by rank, and the number of rounds. The
// outcomes of absent ranks are nil.
func runAll(t testing.TB, machines []*Machine, absent map[int]bool) ([]*Outcome, int) {
	t.Helper()
	payloads := make([][]byte, len(machines))
	for i, m := range machines {
		if absent[i] {
			continue
		}
		payloads[i] = m.Start()
	}
	outcomes := make([]*Outcome, len(machines))
	for round := 1; ; round++ {
		summary, err := Merge(payloads)
		if err != nil {
			t.Fatal(err)
		}
		finishedCount := 0
		for i, m := range machines {
			if absent[i] {
				finishedCount++
				continue
			}
			next, outcome, err := m.Step(summary)
			if err != nil {
				t.Fatalf("rank %d: %v", i, err)
			}
			if outcome != nil {
				outcomes[i] = outcome
				finishedCount++
			}
			payloads[i] = next
		}
		if finishedCount == len(machines) {
			return outcomes, round
		}
	}
}

func mustNew(t testing.TB, c Config) *Machine {
	t.Helper()
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// newGroup returns one machine per ledger, all for pool 1.
func newGroup(t testing.TB, mode Mode, ledgers []*ledger.Ledger) []*Machine {
	t.Helper()
	machines := make([]*Machine, len(ledgers))
	for rank, l := range ledgers {
		machines[rank] = mustNew(t, Config{
			Rank: rank, Ranks: len(ledgers), Mode: mode, Group: "world", Tag: "scope end",
			Ledgers: []Ledger{{ID: 1, Source: l}},
		})
	}
	return machines
}

// randomHistory returns n random events.
func randomHistory(r *rand.Rand, n int) []event.Event {
	events := make([]event.Event, n)
	for i := range events {
		size := int64(1+r.IntN(64)) << 9
		events[i] = event.Event{
			Kind: event.KindAlloc + event.Kind(r.IntN(2)), Size: size, Requested: size,
			Segment: int32(r.IntN(4)), Offset: int64(r.IntN(1<<12)) << 9,
		}
	}
	return events
}

// newLedger returns a ledger with the given events. It keeps maxEntries events, or the default
// number for 0.
func newLedger(maxEntries int, events []event.Event) *ledger.Ledger {
	l := ledger.New(maxEntries)
	for _, e := range events {
		l.Append(&e, 0)
	}
	return l
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

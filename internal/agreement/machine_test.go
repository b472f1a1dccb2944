package agreement

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"symmem/event"
	"symmem/internal/ledger"
)

// A Machine runs an agreement on one rank: it finds out whether all ranks have the same history of
// events in each pool. A ledger is such a history, with a digest (hash) at each position.

func TestNewRefusesInvalidConfigs(t *testing.T) {
	source := ledger.New(0) // keeps the default number of events
	cases := map[string]Config{
		"no ranks":                  {},
		"a rank out of range":       {Rank: 2, Ranks: 2},
		"a negative rank":           {Rank: -1, Ranks: 2},
		"names for one rank of two": {Ranks: 2, Names: Names{Members: []int{3}}},
		"an unknown mode":           {Ranks: 1, Mode: ModePrefix + 1},
		"a tag that is too long":    {Ranks: 1, Tag: string(make([]byte, MaxTag+1))},
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

// growingLedger is the ledger of a pool that allocates during the agreement: it appends an event
// in each call of DigestAt.
type growingLedger struct{ *ledger.Ledger }

func (l growingLedger) DigestAt(position uint64) (uint64, bool) {
	digest, ok := l.Ledger.DigestAt(position)
	l.Append(&event.Event{Kind: event.KindFree, Size: 1}, 0)
	return digest, ok
}

// TestEventsAfterStartAreIgnored changes one event on rank 2, and ends the history of rank 1 before
// this event. So there are three variants: the event, no event, and the changed event. Events that
// growingLedger appends later must not be compared. Otherwise, rank 1 would have an event, too.
func TestEventsAfterStartAreIgnored(t *testing.T) {
	history := randomHistory(newRand(5), 1000) // all on stream 0
	for _, position := range []int{0, 500, 999} {
		changedHistory := slices.Clone(history)
		changedHistory[position].Stream = 3
		var machines []*Machine
		for rank, events := range [][]event.Event{history, history[:position], changedHistory} {
			source := growingLedger{newLedger(0, events)}
			machines = append(machines, mustNew(t, Config{
				Rank: rank, Ranks: 3, Ledgers: []Ledger{{ID: 1, Source: source}},
			}))
		}

		outcomes, _ := runAll(t, machines, noAbsentRanks)
		d := outcomes[0].Divergence
		if d == nil || d.Position != uint64(position) {
			t.Fatalf("got %+v, want a divergence at event %d", d, position)
		}

		if len(d.Variants) != 3 { // in the order of the ranks
			t.Fatalf("got variants %+v at event %d, want three", d.Variants, position)
		}

		if d.Variants[1].HasEvent {
			t.Fatalf("got variant %+v, want no event on rank 1, which ended at %d", d.Variants[1],
				position)
		}
	}
}

// forgetfulLedger is a ledger that no longer knows digests when it is asked.
type forgetfulLedger struct{ *ledger.Ledger }

func (forgetfulLedger) DigestAt(uint64) (uint64, bool) { return 0, false }

// A rank may drop digests while others search the difference. Then the search must end with a
// range instead of an event. It must not continue, because the rank may drop more and more.
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

	outcomes, rounds := runAll(t, machines, noAbsentRanks)
	d := outcomes[1].Divergence
	if d == nil || d.Position > 700 || d.Last < 700 {
		t.Fatalf("got %+v, want a range with event 700", d)
	}

	if rounds > 3 { // one each for votes, digests and events
		t.Fatalf("got %d rounds, want at most 3", rounds)
	}
}

// In production, the exchange sends a rank's payload to all ranks and returns theirs. Here there is
// one rank, and the exchange only returns a result.
func TestRunReturnsErrorsOfExchangeAndContext(t *testing.T) {
	newMachine := func() *Machine {
		l := ledger.New(0)
		return mustNew(t, Config{Ranks: 1, Ledgers: []Ledger{{ID: 1, Source: l}}})
	}
	returnPayload := func(_ context.Context, p []byte) ([][]byte, error) { return [][]byte{p}, nil }
	outcome, err := Run(t.Context(), returnPayload, newMachine())
	if err != nil || outcome.Divergence != nil {
		t.Fatalf("Run with one rank = %+v, %v; want no divergence", outcome, err)
	}

	errExchange := errors.New("broken")
	fail := func(context.Context, []byte) ([][]byte, error) { return nil, errExchange }
	_, err = Run(t.Context(), fail, newMachine())
	if !errors.Is(err, errExchange) {
		t.Errorf("failing exchange: got error %v, want %v", err, errExchange)
	}

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	failIfDone := func(ctx context.Context, _ []byte) ([][]byte, error) { return nil, ctx.Err() }
	_, err = Run(cancelled, failIfDone, newMachine())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled context: got error %v, want context.Canceled", err)
	}

	returnMalformed := func(context.Context, []byte) ([][]byte, error) {
		return [][]byte{{9}}, nil // too short for a payload
	}
	_, err = Run(t.Context(), returnMalformed, newMachine())
	if !errors.Is(err, ErrProtocol) {
		t.Errorf("malformed payload: got error %v, want ErrProtocol", err)
	}
}

// Ranks compare the value of Pending instead of the list of segments that it stands for.
func TestPendingListsDifferByOrderAndContent(t *testing.T) {
	var empty Pending
	lists := map[string]Pending{
		"no segment":                   empty,
		"segment 0 of 64 bytes":        empty.Add(0, 64),
		"segment 0 of 65 bytes":        empty.Add(0, 65),
		"segments 0 and 1 of 64 bytes": empty.Add(0, 64).Add(1, 64),
		"segments 1 and 0 of 64 bytes": empty.Add(1, 64).Add(0, 64),
	}
	nameOf := map[Pending]string{}
	for name, list := range lists {
		if other, ok := nameOf[list]; ok {
			t.Errorf("%q and %q have the same value %+v, want different values", name, other, list)
		}

		nameOf[list] = name
	}
}

// noAbsentRanks is the argument of runAll if all ranks take part.
var noAbsentRanks map[int]bool

// runAll runs an agreement and returns the outcomes, by rank, and the number of rounds. absent is
// the set of ranks that send no payloads. Their outcomes are nil. An error of a machine fails the
// test.
func runAll(
	t rapid.TB, machines []*Machine, absent map[int]bool,
) (outcomes []*Outcome, rounds int) {
	t.Helper()
	payloads := make([][]byte, len(machines))
	for i, m := range machines {
		if absent[i] {
			continue
		}

		payloads[i] = m.Start()
	}

	outcomes = make([]*Outcome, len(machines))
	for {
		rounds++
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
			return outcomes, rounds
		}
	}
}

// mustNew returns a machine for one rank. An invalid Config fails the test.
func mustNew(t rapid.TB, c Config) *Machine {
	t.Helper()
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}

	return m
}

// groupLedger is the ID of the ledger in newGroup.
const groupLedger = 1

// newGroup returns a machine for each rank of a group with one pool. ledgers contains the rank's
// history of the pool, by rank.
func newGroup(t rapid.TB, mode Mode, ledgers []*ledger.Ledger) []*Machine {
	t.Helper()
	machines := make([]*Machine, len(ledgers))
	for rank, l := range ledgers {
		machines[rank] = mustNew(t, Config{
			Rank: rank, Ranks: len(ledgers), Mode: mode, Group: "world", Tag: "scope end",
			Ledgers: []Ledger{{ID: groupLedger, Source: l}},
		})
	}

	return machines
}

// randomHistory returns n random events, allocations and frees on stream 0. They need not fit
// together, because an agreement only compares them.
func randomHistory(r *rand.Rand, n int) []event.Event {
	events := make([]event.Event, n)
	for i := range events {
		size := int64(1+r.IntN(64)) * 512
		kind := event.KindAlloc
		if r.IntN(2) == 1 {
			kind = event.KindFree
		}

		events[i] = event.Event{
			Kind:      kind,
			Segment:   int32(r.IntN(4)),
			Offset:    int64(r.IntN(1<<12)) * 512,
			Size:      size,
			Requested: size,
		}
	}

	return events
}

// newLedger returns a ledger with the given events, of which it keeps the last maxEntries. With 0,
// it keeps the default number, which is larger than all histories of these tests.
func newLedger(maxEntries int, events []event.Event) *ledger.Ledger {
	l := ledger.New(maxEntries)
	for _, e := range events {
		l.Append(&e, 0)
	}

	return l
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

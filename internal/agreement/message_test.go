package agreement

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"symmem/event"
	"symmem/internal/ledger"
)

// payloadsByRound runs an agreement and returns the payloads of each round by rank.
func payloadsByRound(t testing.TB, machines []*Machine) [][][]byte {
	t.Helper()
	payloads := make([][]byte, len(machines))
	for i, m := range machines {
		payloads[i] = m.Start()
	}
	var rounds [][][]byte
	for payloads[0] != nil {
		rounds = append(rounds, slices.Clone(payloads))
		summary, err := Merge(payloads)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range machines {
			if payloads[i], _, err = m.Step(summary); err != nil {
				t.Fatal(err)
			}
		}
	}
	return rounds
}

// newSixMachines returns the machines of six ranks whose histories differ at event 300. There are
// three variants of the event.
func newSixMachines(t testing.TB) []*Machine {
	t.Helper()
	history := randomHistory(newRand(3), 400)
	var ledgers []*ledger.Ledger
	for i := range 6 {
		changedHistory := slices.Clone(history)
		changedHistory[300].Size += int64(i % 3)
		ledgers = append(ledgers, newLedger(0, changedHistory))
	}
	return newGroup(t, ModeExact, ledgers)
}

// TestVariantsBeyondLimitKeepRanks gives each rank another variant of an event. The error must
// list the ranks of those variants that it does not describe.
func TestVariantsBeyondLimitKeepRanks(t *testing.T) {
	const rankCount, otherCount = 40, 40 - maxContributions
	machines := make([]*Machine, rankCount)
	for i := range machines {
		l := newLedger(0, []event.Event{{Kind: event.KindAlloc, Size: int64(i)}})
		machines[i] = mustNew(t, Config{
			Rank: i, Ranks: rankCount, Ledgers: []Ledger{{ID: 1, Source: l}},
		})
	}
	outcomes, _ := runAll(t, machines, nil)
	d := outcomes[9].Divergence
	if len(d.Variants) != maxContributions || len(d.OtherRanks) != otherCount || len(d.Deviant) != 0 {
		t.Fatalf("got %d variants, other ranks %v, deviant ranks %v; want %d variants, %d other "+
			"ranks, no deviant ranks", len(d.Variants), d.OtherRanks, d.Deviant, maxContributions,
			otherCount)
	}
}

func TestMalformedPayloadsAreRefused(t *testing.T) {
	rounds := payloadsByRound(t, newSixMachines(t))
	votes, probes, events := rounds[0], rounds[1], rounds[len(rounds)-1]
	otherVersion := slices.Clone(votes[1])
	otherVersion[0]++ // the payload begins with the version
	tooManyVotes := append(slices.Clone(votes[1]), make([]byte, MaxLedgers*binary.Size(vote{}))...)
	oversized := message{phase: phaseProbe, value: make([]byte, maxValue+1)}
	event3 := message{phase: phaseEvents, round: 9, ledger: 1, position: 3}
	event4 := message{phase: phaseEvents, round: 9, ledger: 1, position: 4}
	for name, c := range map[string][][]byte{
		"another version":            {votes[0], otherVersion},
		"an empty payload":           {votes[0], {}},
		"an extra byte":              {votes[0], append(slices.Clone(votes[1]), 0)},
		"a missing byte":             {votes[0], votes[1][:len(votes[1])-1]},
		"too many pools":             {votes[0], tooManyVotes},
		"a value that is too long":   {oversized.encode()},
		"a payload of another round": {votes[0], probes[1]},
		"a payload of a later phase": {probes[0], events[1]},
		"an unknown phase":           {(&message{phase: phaseDone}).encode()},
		"events of two positions":    {event3.encode(), event4.encode()},
		"no payload":                 {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Merge(c); !errors.Is(err, ErrProtocol) {
				t.Fatalf("Merge returned error %v, want ErrProtocol", err)
			}
		})
	}
}

// TestMismatchedSummariesAreRefused passes a Summary to Step that does not belong to the first
// round of rank 0 in a group of six ranks.
func TestMismatchedSummariesAreRefused(t *testing.T) {
	rounds := payloadsByRound(t, newSixMachines(t))
	withFewerRanks := slices.Clone(rounds[0])[:5]
	withoutOwn := slices.Clone(rounds[0])
	withoutOwn[0] = nil
	for name, payloads := range map[string][][]byte{
		"of a later round":        rounds[1],
		"of fewer ranks":          withFewerRanks,
		"without the rank itself": withoutOwn,
	} {
		t.Run(name, func(t *testing.T) {
			m := newSixMachines(t)[0]
			m.Start()
			if _, _, err := m.Step(mustMerge(t, payloads)); !errors.Is(err, ErrProtocol) {
				t.Fatalf("Step returned error %v, want ErrProtocol", err)
			}
			if _, _, err := m.Step(mustMerge(t, rounds[0])); !errors.Is(err, ErrProtocol) {
				t.Fatalf("Step after an error: got %v, want ErrProtocol", err)
			}
		})
	}
}

func mustMerge(t testing.TB, payloads [][]byte) *Summary {
	t.Helper()
	s, err := Merge(payloads)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// FuzzMergeAndStep merges the payloads a and b in a round of rank 0 that follows up to after other
// rounds.
func FuzzMergeAndStep(f *testing.F) {
	rounds := payloadsByRound(f, newSixMachines(f))
	for i, payloads := range rounds {
		f.Add(payloads[0], payloads[1], uint8(i))
		f.Add(payloads[2], rounds[0][3], uint8(i))
	}
	f.Fuzz(func(t *testing.T, a, b []byte, after uint8) {
		m := newSixMachines(t)[0]
		m.Start()
		for i := range int(after) % len(rounds) {
			_, _, _ = m.Step(mustMerge(t, rounds[i]))
		}
		s, err := Merge([][]byte{a, b, nil, nil, nil, a})
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("got %v, want ErrProtocol", err)
			}
			return
		}
		next, outcome, err := m.Step(s)
		if err != nil && !errors.Is(err, ErrProtocol) {
			t.Fatalf("got %v, want ErrProtocol", err)
		}
		if err == nil && (next == nil) == (outcome == nil) {
			t.Fatal("Step returned both a payload and an outcome, or neither")
		}
		if outcome != nil && outcome.Divergence != nil {
			_ = outcome.Divergence.Error() // must not panic
		}
	})
}

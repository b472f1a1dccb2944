package agreement

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"symmem/event"
	"symmem/internal/ledger"
)

func payloadsByRound(t testing.TB, machines []*Machine) [][][]byte {
	t.Helper()
	payloads := make([][]byte, len(machines))
	for i, m := range machines {
		payloads[i] = m.Start()
	}
	var out [][][]byte
	for payloads[0] != nil {
		out = append(out, slices.Clone(payloads))
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
	return out
}

func newSixMachines(t testing.TB) []*Machine {
	t.Helper()
	base := randomHistory(newRand(3), 400)
	var ledgers []*ledger.Ledger
	for i := range 6 {
		h := slices.Clone(base)
		h[300].Size += int64(i % 3)
		ledgers = append(ledgers, newLedger(0, h))
	}
	return newGroup(t, ModeExact, ledgers)
}

func TestVariantsBeyondLimitKeepRanks(t *testing.T) {
	machines := make([]*Machine, 40)
	for i := range machines {
		l := newLedger(0, []event.Event{{Kind: event.KindAlloc, Size: int64(i)}})
		machines[i] = mustNew(t, Config{
			Rank: i, Ranks: 40, Ledgers: []Ledger{{ID: 1, Source: l}},
		})
	}
	outcomes, _ := runAll(t, machines, nil)
	d := outcomes[9].Divergence
	if len(d.Variants) != maxContributions || len(d.OtherRanks) != 24 || len(d.Deviant) != 0 {
		t.Fatalf("got %d variants, other ranks %v, deviant ranks %v; want %d, 24 ranks and none",
			len(d.Variants), d.OtherRanks, d.Deviant, maxContributions)
	}
}

func TestMalformedPayloadsAreRefused(t *testing.T) {
	rounds := payloadsByRound(t, newSixMachines(t))
	first, probe, last := rounds[0], rounds[1], rounds[len(rounds)-1]
	wrongVersion := slices.Clone(first[1])
	wrongVersion[0]++
	many := append(slices.Clone(first[1]), make([]byte, MaxLedgers*binary.Size(vote{}))...)
	oversized := message{phase: phaseProbe, value: make([]byte, maxValue+1)}
	event3 := message{phase: phaseEvents, round: 9, ledger: 1, position: 3}
	event4 := message{phase: phaseEvents, round: 9, ledger: 1, position: 4}
	for name, c := range map[string][][]byte{
		"another version":            {first[0], wrongVersion},
		"an empty payload":           {first[0], {}},
		"an extra byte":              {first[0], append(slices.Clone(first[1]), 0)},
		"a missing byte":             {first[0], first[1][:len(first[1])-1]},
		"too many pools":             {first[0], many},
		"a value that is too long":   {oversized.encode()},
		"a payload of another round": {first[0], probe[1]},
		"a payload of a later phase": {probe[0], last[1]},
		"an unknown phase":           {(&message{phase: phaseDone}).encode()},
		"events of two positions":    {event3.encode(), event4.encode()},
		"no payload":                 {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Merge(c); !errors.Is(err, ErrProtocol) {
				t.Fatalf("got %v, want ErrProtocol", err)
			}
		})
	}
}

func TestMismatchedSummariesAreRefused(t *testing.T) {
	rounds := payloadsByRound(t, newSixMachines(t))
	fewer := slices.Clone(rounds[0])[:5]
	without := slices.Clone(rounds[0])
	without[0] = nil
	for name, payloads := range map[string][][]byte{
		"of a later round": rounds[1], "of fewer ranks": fewer, "without the rank itself": without,
	} {
		t.Run(name, func(t *testing.T) {
			m := newSixMachines(t)[0]
			m.Start()
			if _, _, err := m.Step(mustMerge(t, payloads)); !errors.Is(err, ErrProtocol) {
				t.Fatalf("got %v, want ErrProtocol", err)
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

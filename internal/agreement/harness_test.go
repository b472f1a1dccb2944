package agreement

import (
	"math/rand/v2"
	"testing"

	"symmem/internal/ledger"
)

// drive takes the machines of all ranks through an agreement and returns the verdict of each and
// the number of rounds. Ranks for which absent is true contribute nothing.
func drive(t testing.TB, machines []*Machine, absent map[int]bool) ([]*Verdict, int) {
	t.Helper()
	payloads := make([][]byte, len(machines))
	for i, m := range machines {
		if absent[i] {
			continue
		}
		p, err := m.Start()
		if err != nil {
			t.Fatal(err)
		}
		payloads[i] = p
	}
	verdicts := make([]*Verdict, len(machines))
	for round := 1; ; round++ {
		summary, err := FoldAll(payloads)
		if err != nil {
			t.Fatal(err)
		}
		done := 0
		for i, m := range machines {
			if absent[i] {
				done++
				continue
			}
			next, verdict, err := m.Step(summary)
			if err != nil {
				t.Fatalf("rank %d: %v", i, err)
			}
			if verdict != nil {
				verdicts[i] = verdict
				done++
			}
			payloads[i] = next
		}
		if done == len(machines) {
			return verdicts, round
		}
	}
}

func machineOf(t testing.TB, c Config) *Machine {
	t.Helper()
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// group makes one machine a rank over one pool, numbered 1.
func group(t testing.TB, mode Mode, ledgers []*ledger.Ledger) []*Machine {
	t.Helper()
	out := make([]*Machine, len(ledgers))
	for rank, l := range ledgers {
		out[rank] = machineOf(t, Config{
			Rank: rank, Ranks: len(ledgers), Mode: mode, Group: "world", Tag: "scope end",
			Ledgers: []Ledger{{ID: 1, Source: l}},
		})
	}
	return out
}

// history returns n events as a pool makes them, from a given random source.
func history(r *rand.Rand, n int) []ledger.Event {
	out := make([]ledger.Event, n)
	for i := range out {
		size := int64(1+r.IntN(64)) << 9
		out[i] = ledger.Event{
			Kind: ledger.KindAlloc + ledger.Kind(r.IntN(2)), Size: size, Requested: size,
			Segment: int32(r.IntN(4)), Offset: int64(r.IntN(1<<12)) << 9,
		}
	}
	return out
}

func ledgerOf(o ledger.Options, events []ledger.Event) *ledger.Ledger {
	l := ledger.New(o)
	for _, e := range events {
		l.Absorb(&e)
	}
	return l
}

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

package agreement

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"symmem/event"
	"symmem/internal/ledger"
)

// In an agreement, each rank has a Machine. In each round, the machines send payloads. Merge
// combines these to a Summary, from which Step computes the payload of the next round or the
// outcome.

// payloadsByRound runs an agreement and returns the payloads that ranks send: the result contains,
// for each round, the payload of each rank. An error of a machine fails the test.
func payloadsByRound(t testing.TB, machines []*Machine) [][][]byte {
	t.Helper()
	payloads := make([][]byte, len(machines))
	for i, m := range machines {
		payloads[i] = m.Start()
	}

	var rounds [][][]byte
	for payloads[0] != nil { // nil after the last round, on all ranks at the same time
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
// three variants of the event, each on two ranks. The machines have not been started. newGroup
// makes a machine for each ledger.
func newSixMachines(t testing.TB) []*Machine {
	t.Helper()
	history := randomHistory(newRand(3), 400)
	var ledgers []*ledger.Ledger
	for rank := range 6 {
		changedHistory := slices.Clone(history)
		changedHistory[300].Size += int64(rank % 3)
		ledgers = append(ledgers, newLedger(0, changedHistory))
	}

	return newGroup(t, ModeExact, ledgers)
}

// TestVariantsBeyondLimitKeepRanks gives each rank another variant of an event. The error describes
// at most maxContributions variants. It must list the ranks that have one of the others.
func TestVariantsBeyondLimitKeepRanks(t *testing.T) {
	const rankCount = 40
	const otherCount = rankCount - maxContributions
	machines := make([]*Machine, rankCount)
	for i := range machines {
		l := newLedger(0, []event.Event{{Kind: event.KindAlloc, Size: int64(i)}})
		machines[i] = mustNew(t, Config{
			Rank: i, Ranks: rankCount, Ledgers: []Ledger{{ID: 1, Source: l}},
		})
	}

	outcomes, _ := runAll(t, machines, noAbsentRanks)
	d := outcomes[9].Divergence // that of any rank, as all have the same
	if len(d.Variants) != maxContributions {
		t.Errorf("got %d variants, want %d", len(d.Variants), maxContributions)
	}

	if len(d.OtherRanks) != otherCount {
		t.Errorf("got other ranks %v, want %d ranks", d.OtherRanks, otherCount)
	}

	if len(d.Deviant) != 0 {
		t.Errorf("got deviant ranks %v, want none without a majority", d.Deviant)
	}
}

// Merge combines the payloads of all ranks in one round. It must refuse payloads that cannot be
// decoded, and those that do not belong to one round.
func TestMalformedPayloadsAreRefused(t *testing.T) {
	// Ranks send votes in the first round, digests at probed positions in several rounds, and the
	// differing events in the last round.
	rounds := payloadsByRound(t, newSixMachines(t))
	votes, probes, events := rounds[0], rounds[1], rounds[len(rounds)-1]
	otherVersion := slices.Clone(votes[1])
	otherVersion[0]++ // the payload begins with the version
	tooManyVotes := append(slices.Clone(votes[1]), make([]byte, MaxLedgers*binary.Size(vote{}))...)
	oversized := message{phase: phaseProbe, value: make([]byte, maxValue+1)}
	event3 := message{phase: phaseEvents, round: 9, ledger: 1, position: 3}
	event4 := message{phase: phaseEvents, round: 9, ledger: 1, position: 4}
	for name, payloads := range map[string][][]byte{
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
			if _, err := Merge(payloads); !errors.Is(err, ErrProtocol) {
				t.Fatalf("Merge returned error %v, want ErrProtocol", err)
			}
		})
	}
}

// TestMismatchedSummariesAreRefused passes a Summary to Step that does not belong to the first
// round of rank 0 in a group of six ranks. The error ends the agreement, so Step must then refuse
// the right Summary, too.
func TestMismatchedSummariesAreRefused(t *testing.T) {
	rounds := payloadsByRound(t, newSixMachines(t))
	withFewerRanks := rounds[0][:5]
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
				t.Fatalf("Step after an error: got error %v, want ErrProtocol", err)
			}
		})
	}
}

// mustMerge returns the Summary of the payloads of one round. Malformed payloads fail the test.
func mustMerge(t testing.TB, payloads [][]byte) *Summary {
	t.Helper()
	s, err := Merge(payloads)
	if err != nil {
		t.Fatal(err)
	}

	return s
}

// FuzzMergeAndStep merges the payloads a and b of ranks 0, 1 and 5. The others are absent. It
// passes the result to rank 0 after some regular rounds, whose number depends on after. Merge and
// Step must not panic, and must return no errors but ErrProtocol.
func FuzzMergeAndStep(f *testing.F) {
	rounds := payloadsByRound(f, newSixMachines(f))
	for i, payloads := range rounds {
		f.Add(payloads[0], payloads[1], uint8(i))  // of the same round
		f.Add(payloads[2], rounds[0][3], uint8(i)) // mostly of different rounds
	}

	f.Fuzz(func(t *testing.T, a, b []byte, after uint8) {
		m := newSixMachines(t)[0]
		m.Start()
		for i := range int(after) % len(rounds) {
			if _, _, err := m.Step(mustMerge(t, rounds[i])); err != nil {
				t.Fatalf("Step in regular round %d: %v", i, err)
			}
		}

		s, err := Merge([][]byte{a, b, nil, nil, nil, a})
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("Merge returned error %v, want ErrProtocol", err)
			}

			return
		}

		next, outcome, err := m.Step(s)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("Step returned error %v, want ErrProtocol", err)
			}

			return
		}

		hasNext, hasOutcome := next != nil, outcome != nil
		if hasNext == hasOutcome {
			t.Fatalf("Step returned a payload: %v, and an outcome: %v; want one of them", hasNext,
				hasOutcome)
		}

		if outcome != nil && outcome.Divergence != nil {
			_ = outcome.Divergence.Error() // must not panic
		}
	})
}

package agreement

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"symmem/event"
	"symmem/internal/ledger"
)

// An agreement compares the histories of all ranks. Each rank has a Machine for it. In each round:
//
//   - Each Machine returns a payload, which its rank sends to all ranks.
//   - Each rank passes the payloads of all ranks to Merge, which combines them in a Summary.
//   - Each rank passes the Summary to Step, a method of its Machine. It returns the payload for the
//     next round, or the outcome if this was the last round.
//
// If the histories differ, the outcome is a divergence: the event that differs, its variants, and
// the ranks that have each variant. Merge and Step must return ErrProtocol for invalid payloads.

// payloadsByRound runs an agreement. It returns the payloads of all ranks for each round: [2][1] is
// the payload of rank 1 in round 2. Rounds are numbered from 0. An error of a machine fails the
// test.
func payloadsByRound(t testing.TB, machines []*Machine) [][][]byte {
	t.Helper()
	payloads := make([][]byte, len(machines)) // of the current round, by rank
	for rank, m := range machines {
		payloads[rank] = m.Start()
	}

	var rounds [][][]byte
	for payloads[0] != nil { // nil after the last round, on all ranks at the same time
		rounds = append(rounds, slices.Clone(payloads))
		summary, err := Merge(payloads)
		if err != nil {
			t.Fatal(err)
		}

		for rank, m := range machines {
			payloads[rank], _, err = m.Step(summary)
			if err != nil {
				t.Fatal(err)
			}
		}
	}

	return rounds
}

// newSixMachines returns machines for six ranks, whose histories of 400 events differ only at event
// 300. There are three variants of this event, each on two ranks. The machines have not been
// started.
func newSixMachines(t testing.TB) []*Machine {
	t.Helper()
	const rankCount, eventCount, differingEvent, variantCount = 6, 400, 300, 3
	const keepAll = 0
	commonHistory := randomHistory(newRand(3), eventCount)
	var ledgers []*ledger.Ledger // histories by rank
	for rank := range rankCount {
		history := slices.Clone(commonHistory)
		variant := rank % variantCount
		history[differingEvent].Size += int64(variant)
		ledgers = append(ledgers, newLedger(keepAll, history))
	}

	return newGroup(t, ModeExact, ledgers)
}

// TestVariantsBeyondLimitKeepRanks gives each of 40 ranks another variant of an event. The
// divergence describes only maxContributions variants. It must list the ranks that have one of the
// others.
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
	const anyRank = 9 // all have the same divergence
	d := outcomes[anyRank].Divergence
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

// TestMalformedPayloadsAreRefused passes payloads to Merge that cannot be decoded, or that do not
// belong to one round. Merge must return ErrProtocol.
func TestMalformedPayloadsAreRefused(t *testing.T) {
	// Payloads by rank. The first round has votes, the next ones probes, and the last one events.
	rounds := payloadsByRound(t, newSixMachines(t))
	votes := rounds[0]
	probes := rounds[1]
	events := rounds[len(rounds)-1]

	otherVersion := slices.Clone(votes[1])
	otherVersion[0]++ // the payload begins with the version
	extraByte := append(slices.Clone(votes[1]), 0)
	missingByte := votes[1][:len(votes[1])-1]
	tooManyVotes := append(slices.Clone(votes[1]), make([]byte, MaxLedgers*binary.Size(vote{}))...)
	oversized := message{phase: phaseProbe, value: make([]byte, maxValue+1)}
	unknownPhase := message{phase: phaseDone}
	event3 := message{phase: phaseEvents, round: 9, ledger: 1, position: 3}
	event4 := message{phase: phaseEvents, round: 9, ledger: 1, position: 4}
	for name, payloads := range map[string][][]byte{ // by rank
		"another version":            {votes[0], otherVersion},
		"an empty payload":           {votes[0], {}},
		"an extra byte":              {votes[0], extraByte},
		"a missing byte":             {votes[0], missingByte},
		"too many pools":             {votes[0], tooManyVotes},
		"a value that is too long":   {oversized.encode()},
		"a payload of another round": {votes[0], probes[1]},
		"a payload of a later phase": {probes[0], events[1]},
		"an unknown phase":           {unknownPhase.encode()},
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

// TestMismatchedSummariesAreRefused passes a Summary to Step that is wrong for the first round of
// rank 0 in a group of six ranks. Step must return an error, which ends the agreement. So it must
// then return an error for the right Summary, too.
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
			wrong := mustMerge(t, payloads)
			if _, _, err := m.Step(wrong); !errors.Is(err, ErrProtocol) {
				t.Fatalf("Step returned error %v, want ErrProtocol", err)
			}

			right := mustMerge(t, rounds[0])
			if _, _, err := m.Step(right); !errors.Is(err, ErrProtocol) {
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

// FuzzMergeAndStep merges random payloads a and b in a group of six ranks: ranks 0 and 5 send a,
// rank 1 sends b, and the others are absent. It passes the Summary to Step of rank 0 after some
// regular rounds, whose number depends on after. Merge and Step must not panic, and may return no
// error except ErrProtocol.
func FuzzMergeAndStep(f *testing.F) {
	rounds := payloadsByRound(f, newSixMachines(f))
	for i, payloads := range rounds {
		f.Add(payloads[0], payloads[1], uint8(i))  // of the same round
		f.Add(payloads[2], rounds[0][3], uint8(i)) // mostly of different rounds
	}

	f.Fuzz(func(t *testing.T, a, b []byte, after uint8) {
		m := newSixMachines(t)[0]
		m.Start()
		regularRounds := int(after) % len(rounds)
		for i := range regularRounds {
			if _, _, err := m.Step(mustMerge(t, rounds[i])); err != nil {
				t.Fatalf("Step in regular round %d: %v", i, err)
			}
		}

		summary, err := Merge([][]byte{a, b, nil, nil, nil, a})
		if err != nil {
			checkIsErrProtocol(t, "Merge", err)
			return
		}

		next, outcome, err := m.Step(summary)
		if err != nil {
			checkIsErrProtocol(t, "Step", err)
			return
		}

		hasNext := next != nil
		hasOutcome := outcome != nil
		if hasNext == hasOutcome {
			t.Fatalf("Step returned a payload: %v, and an outcome: %v; want one of them", hasNext,
				hasOutcome)
		}

		if hasOutcome && outcome.Divergence != nil {
			_ = outcome.Divergence.Error() // must not panic
		}
	})
}

// checkIsErrProtocol fails the test if an error of a function is not ErrProtocol.
func checkIsErrProtocol(t *testing.T, function string, err error) {
	t.Helper()
	if !errors.Is(err, ErrProtocol) {
		t.Fatalf("%s returned error %v, want ErrProtocol", function, err)
	}
}

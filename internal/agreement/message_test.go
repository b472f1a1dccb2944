package agreement

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"symmem/event"
	"symmem/internal/ledger"
)

// payloadsByRound runs an agreement to its end, and returns the payloads by round and rank.
func payloadsByRound(t testing.TB, machines []*Machine) [][][]byte {
	t.Helper()
	payloads := make([][]byte, len(machines)) // of the current round, by rank
	for rank, m := range machines {
		payloads[rank] = m.Start()
	}

	var rounds [][][]byte
	for payloads[0] != nil { // until the last round, which is the same on all ranks
		rounds = append(rounds, slices.Clone(payloads))
		summary := mustMerge(t, payloads)
		for rank, m := range machines {
			var err error
			payloads[rank], _, err = m.Step(summary)
			if err != nil {
				t.Fatal(err)
			}
		}
	}

	return rounds
}

// newSixMachines returns machines for six ranks, not yet started. Their histories differ only in
// event 300, which has three variants, each on two ranks.
func newSixMachines(t testing.TB) []*Machine {
	t.Helper()
	const rankCount, variantCount = 6, 3
	const eventCount, differingEvent = 400, 300
	const keepAll = 0 // keeps the default number, which exceeds eventCount
	const anySeed = 3
	commonHistory := randomHistory(newRand(anySeed), eventCount)
	var ledgers []*ledger.Ledger // by rank
	for rank := range rankCount {
		history := slices.Clone(commonHistory)
		variant := rank % variantCount
		history[differingEvent].Size += int64(variant)
		ledgers = append(ledgers, newLedger(keepAll, history))
	}

	return newGroup(t, ModeExact, ledgers)
}

// A divergence describes at most maxContributions variants, and lists the remaining ranks.
func TestVariantsBeyondLimitKeepRanks(t *testing.T) {
	const rankCount = 40 // more than maxContributions
	const otherCount = rankCount - maxContributions
	const keepAll = 0 // keeps the default number of events
	machines := make([]*Machine, rankCount)
	for rank := range machines {
		ownVariant := []event.Event{{Kind: event.KindAlloc, Size: int64(rank)}}
		l := newLedger(keepAll, ownVariant)
		machines[rank] = mustNew(t, Config{
			Rank: rank, Ranks: rankCount, Ledgers: []Ledger{{ID: 1, Source: l}},
		})
	}

	outcomes, _ := runAll(t, machines, noAbsentRanks)
	const anyRank = 9
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

func TestMalformedPayloadsAreRefused(t *testing.T) {
	rounds := payloadsByRound(t, newSixMachines(t))
	votes := rounds[0] // by rank
	probes := rounds[1]
	events := rounds[len(rounds)-1]

	otherVersion := slices.Clone(votes[1])
	otherVersion[0]++ // the first byte of the version
	extraByte := append(slices.Clone(votes[1]), 0)
	missingByte := votes[1][:len(votes[1])-1]
	tooManyVotes := append(slices.Clone(votes[1]), make([]byte, MaxLedgers*binary.Size(vote{}))...)
	oversized := message{phase: phaseProbe, tagOrSide: make([]byte, maxTagOrSide+1)}
	unknownPhase := message{phase: phaseDone}
	const anyRound, anyLedger = 9, 1
	event3 := message{phase: phaseEvents, round: anyRound, ledger: anyLedger, position: 3}
	event4 := message{phase: phaseEvents, round: anyRound, ledger: anyLedger, position: 4}
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

// An error of Step ends the agreement, even if the next Summary is right.
func TestMismatchedSummariesAreRefused(t *testing.T) {
	rounds := payloadsByRound(t, newSixMachines(t))
	firstRound := rounds[0]
	withFewerRanks := firstRound[:len(firstRound)-1]
	withoutOwn := slices.Clone(firstRound)
	withoutOwn[0] = nil
	for name, payloads := range map[string][][]byte{
		"of a later round":        rounds[1],
		"of fewer ranks":          withFewerRanks,
		"without the rank itself": withoutOwn,
	} {
		t.Run(name, func(t *testing.T) {
			rank0 := newSixMachines(t)[0]
			rank0.Start()
			wrong := mustMerge(t, payloads)
			if _, _, err := rank0.Step(wrong); !errors.Is(err, ErrProtocol) {
				t.Fatalf("Step returned error %v, want ErrProtocol", err)
			}

			right := mustMerge(t, firstRound)
			if _, _, err := rank0.Step(right); !errors.Is(err, ErrProtocol) {
				t.Fatalf("Step after an error: got error %v, want ErrProtocol", err)
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

// FuzzMergeAndStep lets ranks 0, 1 and 5 send random payloads after some regular rounds.
func FuzzMergeAndStep(f *testing.F) {
	rounds := payloadsByRound(f, newSixMachines(f))
	for i, payloads := range rounds {
		f.Add(payloads[0], payloads[1], uint8(i))  // of the same round
		f.Add(payloads[2], rounds[0][3], uint8(i)) // mostly of different rounds
	}

	f.Fuzz(func(t *testing.T, a, b []byte, roundChoice uint8) {
		rank0 := newSixMachines(t)[0]
		rank0.Start()
		regularRounds := int(roundChoice) % len(rounds)
		for i := range regularRounds {
			if _, _, err := rank0.Step(mustMerge(t, rounds[i])); err != nil {
				t.Fatalf("Step in regular round %d: %v", i, err)
			}
		}

		summary, err := Merge([][]byte{a, b, nil, nil, nil, a}) // ranks 2 to 4 are absent
		if err != nil {
			checkIsErrProtocol(t, "Merge", err)
			return
		}

		next, outcome, err := rank0.Step(summary)
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

func checkIsErrProtocol(t *testing.T, function string, err error) {
	t.Helper()
	if !errors.Is(err, ErrProtocol) {
		t.Fatalf("%s returned error %v, want ErrProtocol", function, err)
	}
}

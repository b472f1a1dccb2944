package agreement

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"symmem/internal/ledger"
)

// payloadsOf collects every payload of an agreement that goes through all phases, by round.
func payloadsOf(t testing.TB, machines []*Machine) [][][]byte {
	t.Helper()
	payloads := make([][]byte, len(machines))
	for i, m := range machines {
		payloads[i], _ = m.Start()
	}
	var out [][][]byte
	for payloads[0] != nil {
		out = append(out, slices.Clone(payloads))
		summary, err := MergeAll(payloads)
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

func sixRanks(t testing.TB) []*Machine {
	t.Helper()
	base := history(random(3), 400)
	var ledgers []*ledger.Ledger
	for i := range 6 {
		h := slices.Clone(base)
		h[300].Size += int64(i % 3)
		ledgers = append(ledgers, ledgerOf(ledger.Options{}, h))
	}
	return group(t, Exact, ledgers)
}

func TestFoldingInAnyOrderAndGroupingGivesTheSameBytes(t *testing.T) {
	all := payloadsOf(t, sixRanks(t))
	if len(all) < 4 {
		t.Fatalf("only %d rounds: some phase is left out", len(all))
	}
	rapid.Check(t, func(t *rapid.T) {
		for _, payloads := range all {
			want, err := MergeAll(payloads)
			if err != nil {
				t.Fatal(err)
			}
			left := rapid.Permutation(payloads).Draw(t, "order")
			for len(left) > 1 {
				i := rapid.IntRange(0, len(left)-2).Draw(t, "pair")
				sum, err := Merge(left[i], left[i+1])
				if err != nil {
					t.Fatal(err)
				}
				left = slices.Replace(slices.Clone(left), i, i+2, sum)
			}
			if !bytes.Equal(left[0], want) {
				t.Fatalf("got %x, want %x", left[0], want)
			}
		}
	})
}

func TestMoreVariantsThanAReportListsAreKeptAsRanks(t *testing.T) {
	machines := make([]*Machine, 40)
	for i := range machines {
		l := ledgerOf(ledger.Options{}, []ledger.Event{{Kind: ledger.KindAlloc, Size: int64(i)}})
		machines[i] = machineOf(t, Config{
			Rank: i, Ranks: 40, Ledgers: []Ledger{{ID: 1, Source: l}},
		})
	}
	outcomes, _ := drive(t, machines, nil)
	d := outcomes[9].Divergence
	if len(d.Variants) != maxVariants || d.Others.Len() != 24 || len(d.Deviant) != 0 {
		t.Fatalf("%d variants, others %v, deviant %v", len(d.Variants), d.Others, d.Deviant)
	}
}

func TestPeersThatBreakTheProtocolAreRefused(t *testing.T) {
	rounds := payloadsOf(t, sixRanks(t))
	vote, probe, last := rounds[0], rounds[1], rounds[len(rounds)-1]
	wrongVersion := slices.Clone(vote[1])
	wrongVersion[0]++
	huge := slices.Clone(vote[1])
	huge = append(huge, make([]byte, MaxPayload)...)
	absurd := binary.AppendUvarint([]byte{wireVersion, byte(phaseVote), 0}, math.MaxUint64)
	cases := map[string][2][]byte{
		"another version":                    {vote[0], wrongVersion},
		"an empty payload":                   {vote[0], {}},
		"one byte too many":                  {vote[0], append(slices.Clone(vote[1]), 0)},
		"one byte too few":                   {vote[0], vote[1][:len(vote[1])-1]},
		"a payload of more than the maximum": {vote[0], huge},
		"an absurd number of ranks":          {vote[0], absurd},
		"a rank counted twice":               {vote[0], vote[0]},
		"a payload of another round":         {vote[0], probe[1]},
		"a payload of a later phase":         {probe[0], last[1]},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := Merge(c[0], c[1]); !errors.Is(err, ErrProtocol) {
				t.Fatalf("got %v, want ErrProtocol", err)
			}
		})
	}
	if _, err := MergeAll([][]byte{vote[0], vote[2]}); !errors.Is(err, ErrProtocol) {
		t.Fatalf("a rank that speaks for another: got %v", err)
	}
	if _, err := MergeAll([][]byte{nil, nil}); !errors.Is(err, ErrProtocol) {
		t.Fatalf("nobody there: got %v", err)
	}
}

func TestASummaryThatDoesNotFitTheMachineIsRefused(t *testing.T) {
	rounds := payloadsOf(t, sixRanks(t))
	vote, _ := MergeAll(rounds[0])
	late, _ := MergeAll(rounds[1])
	without, _ := MergeAll([][]byte{nil, rounds[0][1]})
	for name, summary := range map[string][]byte{
		"of a later round": late, "without the rank itself": without, "that is garbage": {1, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			m := sixRanks(t)[0]
			_, _ = m.Start()
			if _, _, err := m.Step(summary); !errors.Is(err, ErrProtocol) {
				t.Fatalf("got %v, want ErrProtocol", err)
			}
			if _, _, err := m.Step(vote); !errors.Is(err, ErrProtocol) {
				t.Fatalf("going on after it: got %v, want ErrProtocol", err)
			}
		})
	}
}

func FuzzFoldAndStep(f *testing.F) {
	for _, payloads := range payloadsOf(f, sixRanks(f)) {
		summary, _ := MergeAll(payloads)
		f.Add(payloads[0], payloads[1])
		f.Add(summary, payloads[2])
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		machines := sixRanks(t)
		for _, m := range machines {
			_, _ = m.Start()
		}
		sum, err := Merge(a, b)
		if err != nil && !errors.Is(err, ErrProtocol) {
			t.Fatalf("got %v, want ErrProtocol", err)
		}
		for i, summary := range [][]byte{a, b, sum} {
			next, outcome, err := machines[i].Step(summary)
			if err != nil && !errors.Is(err, ErrProtocol) {
				t.Fatalf("got %v, want ErrProtocol", err)
			}
			if err == nil && (next == nil) == (outcome == nil) {
				t.Fatal("a step must give a payload or a outcome, and not both")
			}
		}
	})
}

// FuzzLaterRounds hands garbage to machines that have left the vote behind.
func FuzzLaterRounds(f *testing.F) {
	rounds := payloadsOf(f, sixRanks(f))
	for _, payloads := range rounds[1:] {
		summary, _ := MergeAll(payloads)
		f.Add(summary, uint8(1))
		f.Add(summary, uint8(2))
		f.Add(summary, uint8(len(rounds)-1))
	}
	f.Fuzz(func(t *testing.T, summary []byte, after uint8) {
		m := sixRanks(t)[0]
		_, _ = m.Start()
		for i := range int(after) % len(rounds) {
			good, _ := MergeAll(rounds[i])
			_, _, _ = m.Step(good)
		}
		_, outcome, err := m.Step(summary)
		if err != nil && !errors.Is(err, ErrProtocol) {
			t.Fatalf("got %v, want ErrProtocol", err)
		}
		if outcome != nil {
			_ = outcome.Divergence.Error()
		}
	})
}

package random

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/internal/ranktest"
)

// localWorlds opens worlds whose ranks are goroutines of the test. When a rank calls its Open
// function for the n-th time, it gets its Runtime in the n-th world.
type localWorlds struct {
	ranks int // number of ranks in each world

	mu     sync.Mutex
	opened []int               // number of worlds that each rank has opened; guarded by mu
	worlds [][]*symmem.Runtime // Runtimes by world and rank; guarded by mu
}

// open returns the Open function of a rank.
func (l *localWorlds) open(rank int) Open {
	return func(ctx context.Context, o symmem.Options) (*symmem.Runtime, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		number := l.opened[rank]
		l.opened[rank]++
		isFirstRank := number == len(l.worlds) // the first rank that opens this world
		if isFirstRank {
			w, err := symmem.OpenLocal(ctx, l.ranks, o)
			if err != nil {
				return nil, err
			}

			l.worlds = append(l.worlds, w)
		}

		return l.worlds[number][rank], nil
	}
}

// runRanks runs random programs with ranks that are goroutines. It returns the report and the error
// of each rank, by rank.
func runRanks(t *testing.T, c Config, ranks int) ([]*Report, []error) {
	t.Helper()
	l := &localWorlds{ranks: ranks, opened: make([]int, ranks)}
	reports := make([]*Report, ranks)
	errs := ranktest.CollectErrors(ranks, func(rank int) (err error) {
		reports[rank], err = Run(t.Context(), c, Rank{
			Open: l.open(rank), LocalRank: rank, SharedProcess: true,
		})
		return err
	})
	return reports, errs
}

// mustRunRanks is runRanks for runs without errors, which fail the test.
func mustRunRanks(t *testing.T, c Config, ranks int) []*Report {
	t.Helper()
	reports, errs := runRanks(t, c, ranks)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}

	return reports
}

// shortConfig returns a Config for a run of 240 steps.
func shortConfig(seed uint64) Config {
	c := Default()
	c.Backend = "host"
	c.Seed = seed
	c.Rounds = 3
	c.Steps = 80 // in each round
	c.MaxBytes = 64 << 10
	return c
}

// TestRanksReportSameResults checks the totals of a run without errors, which each rank reports for
// all ranks.
func TestRanksReportSameResults(t *testing.T) {
	const seed = 3
	c := shortConfig(seed)
	reports := mustRunRanks(t, c, 3)
	wantSteps := int64(c.Rounds * c.Steps)
	for rank, r := range reports {
		if r.Wrong != 0 {
			t.Errorf("rank %d: %d elements are wrong, want 0", rank, r.Wrong)
		}

		if r.Rounds != c.Rounds || r.Steps != wantSteps {
			t.Errorf("rank %d: got %d rounds and %d steps, want %d and %d", rank, r.Rounds, r.Steps,
				c.Rounds, wantSteps)
		}

		if r.Calls == 0 || r.Graphs == 0 {
			t.Errorf("rank %d: checked %d calls and %d graphs, want some of both", rank, r.Calls,
				r.Graphs)
		}

		// These two differ: each rank has a clock, and makes other unrelated allocations (skew).
		r.ElapsedMS, r.PeakBytes = 0, 0
		if !reflect.DeepEqual(r, reports[0]) {
			t.Errorf("report of rank %d = %+v, want that of rank 0, %+v", rank, r, reports[0])
		}
	}
}

// TestSingleRoundCanBeRepeated checks that a round does the same in a run that begins with it as
// in a run that begins earlier. Otherwise, a failed round could not be examined again.
func TestSingleRoundCanBeRepeated(t *testing.T) {
	const seed, ranks = 5, 2
	runRounds := func(first, count int) *Report { // returns the report of rank 0
		t.Helper()
		c := shortConfig(seed)
		c.FirstRound, c.Rounds = first, count
		return mustRunRanks(t, c, ranks)[0]
	}
	first := runRounds(1, 1)
	second := runRounds(2, 1)
	both := runRounds(1, 2)
	if sum := first.Bytes + second.Bytes; sum != both.Bytes {
		t.Errorf("separate runs of rounds 1 and 2 check %d + %d bytes, but a run of both checks %d",
			first.Bytes, second.Bytes, both.Bytes)
	}

	if sum := first.Calls + second.Calls; sum != both.Calls {
		t.Errorf("separate runs of rounds 1 and 2 check %d + %d calls, but a run of both checks %d",
			first.Calls, second.Calls, both.Calls)
	}
}

const (
	configByAddressSeed  = 1
	configByAddressRanks = 3
)

// configByAddress returns a Config with which the ranks diverge during the run. They place buffers
// by address, and addresses differ between ranks.
func configByAddress(check symmem.CheckLevel) Config {
	c := shortConfig(configByAddressSeed)
	c.Placement, c.Check = symmem.PlaceByAddress, check
	c.Rounds, c.Steps = 5, 200
	return c
}

// TestPlacementByAddressGivesWrongSums checks that a run without checks detects wrong sums, and
// ends with the round in which they occur.
func TestPlacementByAddressGivesWrongSums(t *testing.T) {
	r := mustRunRanks(t, configByAddress(symmem.CheckOff), configByAddressRanks)[0]
	if r.Wrong == 0 || r.OK() {
		t.Fatalf("%d elements are wrong, OK() = %v; want some and false", r.Wrong, r.OK())
	}

	if r.FirstWrongRound != r.Rounds || r.FirstWrongRound == 0 {
		t.Fatalf("the first wrong round is %d of %d, want the last", r.FirstWrongRound, r.Rounds)
	}

	if len(r.Findings) == 0 || !strings.Contains(r.Findings[0], "elements are wrong") {
		t.Errorf("Findings = %q, want wrong elements", r.Findings)
	}
}

// TestPlacementByAddressDivergesWithChecks checks that a run with checks ends with a divergence,
// and that all ranks report the failed round.
func TestPlacementByAddressDivergesWithChecks(t *testing.T) {
	reports, errs := runRanks(t, configByAddress(symmem.CheckEvery), configByAddressRanks)
	divergedCount := 0
	for rank, err := range errs {
		var round *RoundError
		var diverged *symmem.DivergenceError
		if !errors.As(err, &round) || round.Seed != configByAddressSeed {
			t.Errorf("rank %d: got %v, want a RoundError with seed %d", rank, err, configByAddressSeed)
		}

		if !reports[rank].IsInconsistent {
			t.Errorf("rank %d: IsInconsistent = false, want true", rank)
		}

		if errors.As(err, &diverged) {
			divergedCount++
		}
	}

	// A rank outside the group in which the divergence was found may return another error.
	if divergedCount < 2 {
		t.Errorf("%d ranks returned a DivergenceError, want at least 2: %v", divergedCount, errs)
	}
}

// TestAllRanksReportFailureOfOneRank ends a round successfully on rank 0, but with an error on rank
// 1, which has a wrong element. Both ranks must report the failure. The bytes must be those of the
// earlier rounds.
func TestAllRanksReportFailureOfOneRank(t *testing.T) {
	const ranks, number = 2, 5
	const earlierBytes, roundBytes = 1000, 100
	runtimes, err := symmem.OpenLocal(t.Context(), ranks, symmem.Options{Backend: "host"})
	if err != nil {
		t.Fatal(err)
	}

	reports := make([]*Report, ranks)
	errs := ranktest.CollectErrors(ranks, func(rank int) error {
		rt := runtimes[rank]
		defer func() { _ = rt.Close() }()
		gatherer, err := workload.OpenGatherer(t.Context(), rt)
		if err != nil {
			return err
		}

		c := shortConfig(1)
		current := &round{env: &environment{rt: rt, gatherer: gatherer}, number: number}
		r := &runner{config: c, report: newReport(rt, &c), started: time.Now()}
		r.report.Bytes = ranks * earlierBytes
		r.tally.Bytes = earlierBytes + roundBytes
		reports[rank] = r.report
		if rank == 1 {
			r.tally.Wrong = 1
			return r.gatherFailure(t.Context(), current, ErrInUse)
		}

		hasNext, err := r.gatherTallies(t.Context(), current)
		if hasNext {
			t.Error("another round follows, want none")
		}

		return err
	})
	if errs[0] == nil || !errors.Is(errs[1], ErrInUse) {
		t.Errorf("got the errors %v; want one of rank 0, and %q of rank 1", errs, ErrInUse)
	}

	for rank, r := range reports {
		r.ElapsedMS = 0
		if r.FailedRound != number || r.FirstWrongRound != number || r.Wrong != 1 ||
			!r.IsInconsistent || r.Bytes != ranks*earlierBytes {
			t.Errorf("report of rank %d = %+v, want the failed round %d", rank, r, number)
		}
	}
}

// TestRoundEndsAtDeadline runs a round whose deadline has passed when it begins.
func TestRoundEndsAtDeadline(t *testing.T) {
	const seed = 1
	c := shortConfig(seed)
	c.RoundTimeout = time.Nanosecond
	_, errs := runRanks(t, c, 2)
	for rank, err := range errs {
		var round *RoundError
		if !errors.As(err, &round) || round.Round != 1 {
			t.Errorf("rank %d: got %v, want a RoundError for round 1", rank, err)
		}
	}
}

// TestOnHangIsCalledIfRoundContinuesAfterFault aborts the world, but does not end the round. The
// function OnHang must then get the stacks of all goroutines, which show where the round hangs.
func TestOnHangIsCalledIfRoundContinuesAfterFault(t *testing.T) {
	const seed = 1
	c := shortConfig(seed)
	c.Timeout = 20 * time.Millisecond // OnHang is called half of it after the fault
	ranks, err := symmem.OpenLocal(t.Context(), 1, symmem.Options{Backend: "host"})
	if err != nil {
		t.Fatal(err)
	}

	rt := ranks[0]
	defer func() { _ = rt.Close() }() // returns the error of Abort
	received := make(chan []byte, 1)
	onHang := func(_ int, stacks []byte) { received <- stacks }
	r := &runner{config: c, rank: Rank{OnHang: onHang}}
	const round = 1
	stop := r.watchForHang(&environment{rt: rt}, round)
	defer stop()
	rt.World().Abort()
	select {
	case stacks := <-received:
		if !strings.Contains(string(stacks), t.Name()) {
			t.Errorf("the stacks lack that of this test:\n%s", stacks)
		}

	case <-time.After(30 * time.Second): // without the fault, it takes longer than two minutes
		t.Error("OnHang was not called within 30 seconds")
	}
}

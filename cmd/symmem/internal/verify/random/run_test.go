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
	"symmem/internal/ranktest"
)

// localWorlds opens worlds whose ranks are goroutines of the test. When a rank calls its Open
// function for the n-th time, it gets its Runtime in the n-th world.
type localWorlds struct {
	t     *testing.T
	ranks int // number of ranks in each world

	mu     sync.Mutex
	opened []int               // number of calls to Open, by rank; guarded by mu
	worlds [][]*symmem.Runtime // Runtimes by world and rank; guarded by mu
}

func (l *localWorlds) open(rank int) Open {
	return func(ctx context.Context, o symmem.Options) (*symmem.Runtime, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		number := l.opened[rank]
		l.opened[rank]++
		if number == len(l.worlds) {
			w, err := symmem.OpenLocal(ctx, l.ranks, o)
			if err != nil {
				return nil, err
			}
			l.worlds = append(l.worlds, w)
		}
		return l.worlds[number][rank], nil
	}
}

func runRanks(t *testing.T, c Config, ranks int) ([]*Report, []error) {
	t.Helper()
	l := &localWorlds{t: t, ranks: ranks, opened: make([]int, ranks)}
	reports := make([]*Report, ranks)
	errs := ranktest.CollectErrors(ranks, func(rank int) (err error) {
		reports[rank], err = Run(t.Context(), c, Rank{
			Open: l.open(rank), LocalRank: rank, SharedProcess: true,
		})
		return err
	})
	return reports, errs
}

func shortConfig(seed uint64) Config {
	c := Default()
	c.Backend = "host"
	c.Seed = seed
	c.Rounds = 3
	c.Steps = 80
	c.MaxBytes = 64 << 10
	return c
}

func TestRanksReportSameResults(t *testing.T) {
	c := shortConfig(3)
	reports, errs := runRanks(t, c, 3)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	wantSteps := int64(c.Rounds * c.Steps)
	for rank, r := range reports {
		if r.Wrong != 0 || r.Rounds != c.Rounds || r.Steps != wantSteps || r.Calls == 0 ||
			r.Graphs == 0 {
			t.Errorf("rank %d: got %+v, want %d rounds, %d steps, some calls and graphs, and nothing "+
				"wrong", rank, r, c.Rounds, wantSteps)
		}
		// ElapsedMS differs between ranks, as does PeakBytes because of skew.
		r.ElapsedMS, r.PeakBytes = 0, 0
		if !reflect.DeepEqual(r, reports[0]) {
			t.Errorf("report of rank %d = %+v, want that of rank 0, %+v", rank, r, reports[0])
		}
	}
}

// TestSingleRoundCanBeRepeated checks that a round does the same in a run that begins with it as
// in a run that begins earlier.
func TestSingleRoundCanBeRepeated(t *testing.T) {
	c := shortConfig(5)
	c.Rounds = 1
	first, errs := runRanks(t, c, 2)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	c.Rounds = 2
	both, errs := runRanks(t, c, 2)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	c.Rounds, c.FirstRound = 1, 2
	second, errs := runRanks(t, c, 2)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if first[0].Bytes+second[0].Bytes != both[0].Bytes ||
		first[0].Calls+second[0].Calls != both[0].Calls {
		t.Errorf("separate runs of rounds 1 and 2 check %d and %d bytes in %d and %d calls, "+
			"but a run of both checks %d bytes in %d calls", first[0].Bytes, second[0].Bytes,
			first[0].Calls, second[0].Calls, both[0].Bytes, both[0].Calls)
	}
}

func TestPlacementByAddressGivesWrongSums(t *testing.T) {
	c := shortConfig(1)
	c.Placement, c.Check, c.Rounds, c.Steps = symmem.PlaceByAddress, symmem.CheckOff, 5, 200
	reports, errs := runRanks(t, c, 3)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	r := reports[0]
	if r.Wrong == 0 || r.OK() || r.FirstWrongRound != r.Rounds || r.FirstWrongRound == 0 {
		t.Fatalf("got %+v, want wrong sums in the last round", r)
	}
	if len(r.Findings) == 0 || !strings.Contains(r.Findings[0], "elements are wrong") {
		t.Errorf("Findings = %q, want wrong elements", r.Findings)
	}
}

func TestPlacementByAddressDivergesWithChecks(t *testing.T) {
	c := shortConfig(1)
	c.Placement, c.Check, c.Rounds, c.Steps = symmem.PlaceByAddress, symmem.CheckEvery, 5, 200
	reports, errs := runRanks(t, c, 3)
	divergedCount := 0
	for rank, err := range errs {
		var round *RoundError
		var diverged *symmem.DivergenceError
		if !errors.As(err, &round) || round.Seed != 1 || !reports[rank].IsInconsistent {
			t.Errorf("rank %d: got %v, want an inconsistent report and a RoundError", rank, err)
		}
		if errors.As(err, &diverged) {
			divergedCount++
		}
	}
	// A rank outside the group in which the divergence was found may return another error.
	if divergedCount < 2 {
		t.Errorf("%d ranks returned the DivergenceError, want at least 2: %v", divergedCount, errs)
	}
}

func TestRoundEndsAtDeadline(t *testing.T) {
	c := shortConfig(1)
	c.RoundTimeout = time.Nanosecond
	_, errs := runRanks(t, c, 2)
	for rank, err := range errs {
		var round *RoundError
		if !errors.As(err, &round) || round.Round != 1 {
			t.Errorf("rank %d: got %v, want a RoundError for round 1", rank, err)
		}
	}
}

func TestOnHangIsCalledIfRoundContinuesAfterFault(t *testing.T) {
	c := shortConfig(1)
	c.Timeout = 20 * time.Millisecond // OnHang is called after half of it
	ranks, err := symmem.OpenLocal(t.Context(), 1, symmem.Options{Backend: "host"})
	if err != nil {
		t.Fatal(err)
	}
	rt := ranks[0]
	defer func() { _ = rt.Close() }() // returns the error of Abort
	stacks := make(chan []byte, 1)
	r := &runner{config: c, rank: Rank{OnHang: func(_ int, s []byte) { stacks <- s }}}
	stop := r.watchForHang(&environment{rt: rt}, 1)
	defer stop()
	rt.World().Abort()
	select {
	case s := <-stacks:
		if !strings.Contains(string(s), t.Name()) {
			t.Errorf("the stacks lack that of this test:\n%s", s)
		}
	case <-time.After(30 * time.Second):
		t.Error("OnHang was not called")
	}
}

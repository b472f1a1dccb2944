package symmem_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"symmem"
)

// If the calls of ranks 0 and 1 differ from the call of rank 2, the ranks exchange reports in
// several rounds and decide on a DivergenceError with two sides. A rank that is too late for a
// round, so that the others decide without it, still adds its side to its own error.

const differentRank = 2

type lateRankCase struct {
	diverge   divergeFunc
	lateRank  int
	lateRound int32
}

// divergeFunc makes the ranks diverge and returns the DivergenceError.
type divergeFunc func(r *rank, g *symmem.Group, p *symmem.Pool) error

func TestDivergenceContainsOwnSide(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name    string
		rounds  int32 // observed when no rank is late
		diverge divergeFunc
	}{
		{name: "calls", rounds: 3, diverge: callDifferently},
		{name: "placement", rounds: 5, diverge: allocateDifferently},
	} {
		for _, lateRank := range []int{0, differentRank} {
			for round := range kind.rounds {
				name := fmt.Sprintf("%s: rank %d is late in exchange %d", kind.name, lateRank, round)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					checkOwnSides(t, lateRankCase{
						diverge: kind.diverge, lateRank: lateRank, lateRound: round,
					})
				})
			}
		}
	}
}

func callDifferently(r *rank, g *symmem.Group, p *symmem.Pool) error {
	m := r.alloc(p, mib).Memory()
	r.ok(p.Register(r.ctx, g))
	// The ranks wait at most this long for the report of the late rank.
	r.ok(g.SetTimeout(3 * time.Second))
	count := int64(8)
	if r.Rank() == differentRank {
		count = 7
	}

	err := g.AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
	if err == nil {
		err = r.DefaultStream().Synchronize(r.ctx)
	}

	return err
}

func allocateDifferently(r *rank, g *symmem.Group, p *symmem.Pool) error {
	bytes := int64(4096)
	if r.Rank() == differentRank {
		bytes = 8192
	}

	r.alloc(p, bytes)
	return g.Check(r.ctx)
}

func checkOwnSides(t *testing.T, c lateRankCase) {
	t.Helper()
	const ranks = 3
	var punctualRanks sync.WaitGroup // done when the group has ended on all ranks but lateRank
	punctualRanks.Add(ranks - 1)
	o := symmem.Options{Check: symmem.CheckEvery, CallSites: true}
	runRanks(t, ranks, o, func(r *rank) {
		isLate := r.Rank() == c.lateRank
		var begunRounds atomic.Int32
		// All ranks call HoldReports, because its wrapper hides optional methods of the backend, which
		// must be the same everywhere.
		symmem.HoldReports(r.Runtime, func() {
			round := begunRounds.Add(1) - 1
			if isLate && round == c.lateRound {
				punctualRanks.Wait()
			}
		})
		g := r.split(r.World(), 0)
		p := r.pool()
		if !isLate {
			go func() {
				<-g.Ended()
				punctualRanks.Done()
			}()
		}

		d := r.wantDivergence(c.diverge(r, g, p))
		if n := begunRounds.Load(); isLate && n <= c.lateRound {
			r.failf("the late rank has begun %d exchanges of reports, want more than %d", n, c.lateRound)
		}

		// Check has compared the allocations of all ranks, even of the late one.
		wantAllRanks := isLate || d.Kind == symmem.DivergedPlacement
		checkSides(r, d, wantAllRanks)
	})
}

func checkSides(r *rank, d *symmem.DivergenceError, wantAllRanks bool) {
	r.t.Helper()
	own, found := d.Ranks()[r.Rank()]
	if !found || own.Event == "" {
		r.failf("this rank's side is %+v in %+v, want one with an event", own, d)
	}

	if wantAllRanks && len(d.Ranks()) != r.Size() {
		r.failf("the sides are %+v, want those of all ranks", d.Sides)
	}

	for _, side := range d.Sides {
		isShared := len(side.Ranks) > 1
		if slices.Contains(side.Ranks, differentRank) && isShared {
			r.failf("the sides are %+v, want one of rank %d alone", d.Sides, differentRank)
		}
	}
}

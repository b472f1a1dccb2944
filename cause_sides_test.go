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

// If rank 2 makes a different call than ranks 0 and 1, the ranks exchange reports several times and
// decide on a DivergenceError with two sides. If a rank is late for an exchange, the other ranks
// decide without it. The late rank then adds its side to its own copy of the error.

const differentRank = 2

type lateRankCase struct {
	diverge      divergeFunc
	lateRank     int
	lateExchange int32 // counts from 0
}

// divergeFunc makes the ranks diverge and returns the DivergenceError.
type divergeFunc func(r *rank, g *symmem.Group, p *symmem.Pool) error

func TestDivergenceContainsOwnSide(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name      string
		exchanges int32 // observed when no rank is late
		diverge   divergeFunc
	}{
		{name: "calls", exchanges: 3, diverge: callDifferently},
		{name: "placement", exchanges: 5, diverge: allocateDifferently},
	} {
		for _, lateRank := range []int{0, differentRank} {
			for exchange := range kind.exchanges {
				name := fmt.Sprintf("%s: rank %d is late in exchange %d", kind.name, lateRank, exchange)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					checkOwnSides(t, lateRankCase{
						diverge: kind.diverge, lateRank: lateRank, lateExchange: exchange,
					})
				})
			}
		}
	}
}

func callDifferently(r *rank, g *symmem.Group, p *symmem.Pool) error {
	m := r.alloc(p, mib).Memory()
	r.ok(p.Register(r.ctx, g))
	const reportTimeout = 3 * time.Second // of the wait for the late rank's report
	r.ok(g.SetTimeout(reportTimeout))
	count := int64(8)
	if r.Rank() == differentRank {
		count--
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
		bytes *= 2
	}

	r.alloc(p, bytes)
	return g.Check(r.ctx)
}

func checkOwnSides(t *testing.T, c lateRankCase) {
	t.Helper()
	const ranks = 3
	var otherRanks sync.WaitGroup // done when the group has ended on all ranks but lateRank
	otherRanks.Add(ranks - 1)
	o := symmem.Options{Check: symmem.CheckEvery, CallSites: true}
	runRanks(t, ranks, o, func(r *rank) {
		isLate := r.Rank() == c.lateRank
		var begunExchanges atomic.Int32
		// HoldReports hides optional methods of the backend, so all ranks must call it.
		symmem.HoldReports(r.Runtime, func() {
			exchange := begunExchanges.Add(1) - 1
			if isLate && exchange == c.lateExchange {
				otherRanks.Wait()
			}
		})
		g := r.split(r.World(), 0)
		p := r.pool()
		if !isLate {
			go func() {
				<-g.Ended()
				otherRanks.Done()
			}()
		}

		d := r.wantDivergence(c.diverge(r, g, p))
		if n := begunExchanges.Load(); isLate && n <= c.lateExchange {
			r.failf("the late rank has begun %d exchanges, want more than %d", n, c.lateExchange)
		}

		// Group.Check has compared the allocations of all ranks, including those of the late rank.
		wantAllRanks := isLate || d.Kind == symmem.DivergedPlacement
		checkSides(r, d, wantAllRanks)
	})
}

func checkSides(r *rank, d *symmem.DivergenceError, wantAllRanks bool) {
	r.t.Helper()
	own, hasOwn := d.Ranks()[r.Rank()]
	if !hasOwn || own.Event == "" {
		r.failf("this rank's side is %+v in %+v, want one with an event", own, d)
	}

	if wantAllRanks && len(d.Ranks()) != r.Size() {
		r.failf("the sides are %+v, want those of all ranks", d.Sides)
	}

	for _, side := range d.Sides {
		isShared := len(side.Ranks) > 1
		if isShared && slices.Contains(side.Ranks, differentRank) {
			r.failf("the sides are %+v, want one of rank %d alone", d.Sides, differentRank)
		}
	}
}

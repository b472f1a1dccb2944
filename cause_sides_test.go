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
// return a DivergenceError with two Sides, each a call and the ranks that made it. The error may
// lack a rank that is late for an exchange, but the late rank adds its call to its own error.

const differentRank = 2

type lateRankCase struct {
	diverge  divergeFunc
	lateRank int
	exchange int32 // lateRank is late for the exchange with this index
}

// divergeFunc makes the ranks diverge and returns the DivergenceError.
type divergeFunc func(r *rank, g *symmem.Group, p *symmem.Pool) error

func TestDivergenceContainsOwnSide(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name      string
		exchanges int32 // number of exchanges if no rank is late
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
						diverge: kind.diverge, lateRank: lateRank, exchange: exchange,
					})
				})
			}
		}
	}
}

func callDifferently(r *rank, g *symmem.Group, p *symmem.Pool) error {
	m := r.alloc(p, mib).Memory()
	r.ok(p.Register(r.ctx, g))
	const lateReportTimeout = 3 * time.Second
	r.ok(g.SetTimeout(lateReportTimeout))
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
		// HoldReports hides optional methods of the backend. All ranks must hide the same methods.
		symmem.HoldReports(r.Runtime, func() {
			exchange := begunExchanges.Add(1) - 1
			if isLate && exchange == c.exchange {
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
		if n := begunExchanges.Load(); isLate && n <= c.exchange {
			r.failf("the late rank has begun %d exchanges, want more than %d", n, c.exchange)
		}

		// Group.Check has compared the allocations of all ranks before any rank is late.
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

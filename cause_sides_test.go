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

// Three ranks diverge: rank 2 makes a call with other arguments than ranks 0 and 1, or allocates a
// buffer of another size. The DivergenceError has a side for each different call or allocation: one
// of ranks 0 and 1, and one of rank 2.
//
// To find out the sides, the ranks exchange reports of what they know, several times. In these
// tests, a late rank does not begin one of these exchanges until the other ranks have decided on
// the error without it. The error of each rank must still contain the rank's own side.

// differentRank is the rank whose call or allocation differs from that of the others.
const differentRank = 2

// lateRankCase describes how the ranks diverge, and which rank is late in which exchange.
type lateRankCase struct {
	diverge  func(r *rank, g *symmem.Group, p *symmem.Pool) error // returns the DivergenceError
	lateRank int
	exchange int32 // the index of the exchange, counted from 0
}

// TestDivergenceContainsOwnSide makes rank 0 or 2 late in each exchange of reports.
func TestDivergenceContainsOwnSide(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name string
		// exchanges is the number of exchanges that the ranks make if none is late. It was found by
		// counting them.
		exchanges int32
		diverge   func(r *rank, g *symmem.Group, p *symmem.Pool) error
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

// callDifferently makes an all-reduce of 8 elements, or of 7 on differentRank.
func callDifferently(r *rank, g *symmem.Group, p *symmem.Pool) error {
	m := r.alloc(p, mib).Memory()
	r.ok(p.Register(r.ctx, g))
	// The timeout also limits how long the ranks wait for the late rank's report.
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

// allocateDifferently allocates a buffer, which is larger on differentRank, and calls Check.
func allocateDifferently(r *rank, g *symmem.Group, p *symmem.Pool) error {
	bytes := int64(4096)
	if r.Rank() == differentRank {
		bytes = 8192
	}

	r.alloc(p, bytes)
	return g.Check(r.ctx)
}

// checkOwnSides makes three ranks diverge and checks the error of each rank.
func checkOwnSides(t *testing.T, c lateRankCase) {
	t.Helper()
	const ranks = 3
	var others sync.WaitGroup // waits until the group has ended on the ranks other than lateRank
	others.Add(ranks - 1)
	o := symmem.Options{Check: symmem.CheckEvery, CallSites: true}
	runRanks(t, ranks, o, func(r *rank) {
		isLate := r.Rank() == c.lateRank
		var begun atomic.Int32 // exchanges of this rank
		// HoldReports hides optional methods of the backend, which must be the same on all ranks. So
		// the ranks that are not late call it, too.
		symmem.HoldReports(r.Runtime, func() {
			exchange := begun.Add(1) - 1
			if isLate && exchange == c.exchange {
				others.Wait()
			}
		})
		g := r.split(r.World(), 0)
		p := r.pool()
		if !isLate {
			go func() { // returns when the group ends
				<-g.Ended()
				others.Done()
			}()
		}

		d := r.wantDivergence(c.diverge(r, g, p))
		if n := begun.Load(); isLate && n <= c.exchange {
			r.failf("the late rank has begun %d exchanges of reports, want more than %d", n, c.exchange)
		}

		// Other ranks may decide on different calls before they know the late rank's side. A failed
		// Check has compared the allocations of all ranks.
		wantAll := isLate || d.Kind == symmem.DivergedPlacement
		checkSides(r, d, wantAll)
	})
}

// checkSides fails the test unless the error has this rank's side, and differentRank, if it is in
// the error, is alone on its side. If wantAll is true, the error must contain all ranks.
func checkSides(r *rank, d *symmem.DivergenceError, wantAll bool) {
	r.t.Helper()
	own, found := d.Ranks()[r.Rank()]
	if !found || own.Event == "" {
		r.failf("this rank's side is %+v in %+v, want one with an event", own, d)
	}

	if wantAll && len(d.Ranks()) != r.Size() {
		r.failf("the sides are %+v, want those of all ranks", d.Sides)
	}

	for _, side := range d.Sides {
		isShared := len(side.Ranks) > 1
		if slices.Contains(side.Ranks, differentRank) && isShared {
			r.failf("the sides are %+v, want one of rank %d alone", d.Sides, differentRank)
		}
	}
}

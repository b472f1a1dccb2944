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

// TestDivergenceContainsOwnSide makes three ranks diverge, of which rank 2 differs from the others.
// The ranks then exchange reports of what they know. One rank is held before an exchange until the
// others have decided on the cause without it. The error of each rank must still contain at least
// this rank's own call or event (a side of the divergence).
func TestDivergenceContainsOwnSide(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// exchanges is the number of exchanges of reports if no rank is late, found by counting them.
		exchanges int32
		// diverge returns the DivergenceError.
		diverge func(r *rank, g *symmem.Group, p *symmem.Pool) error
	}{
		{name: "calls", exchanges: 3, diverge: callDifferently},
		{name: "placement", exchanges: 5, diverge: allocateDifferently},
	} {
		for _, lateRank := range []int{0, 2} {
			for exchange := range c.exchanges {
				t.Run(fmt.Sprintf("%s: rank %d is late in exchange %d", c.name, lateRank, exchange),
					func(t *testing.T) {
						t.Parallel()
						checkOwnSides(t, lateRank, exchange, c.diverge)
					})
			}
		}
	}
}

// differentRank is the rank whose call or event differs from that of the others.
const differentRank = 2

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

// checkOwnSides makes three ranks diverge and checks the error of each rank. lateRank waits before
// the exchange of reports with the given index until the other ranks have the error.
func checkOwnSides(
	t *testing.T, lateRank int, exchange int32,
	diverge func(r *rank, g *symmem.Group, p *symmem.Pool) error,
) {
	const ranks = 3
	var others sync.WaitGroup // ranks other than lateRank, until the group ends
	others.Add(ranks - 1)
	o := symmem.Options{Check: symmem.CheckEvery, CallSites: true}
	runRanks(t, ranks, o, func(r *rank) {
		// The hook hides the optional methods of a communicator, so all ranks must have the hook.
		var begun atomic.Int32 // exchanges of this rank
		symmem.HoldReports(r.Runtime, func() {
			index := begun.Add(1) - 1
			if r.Rank() == lateRank && index == exchange {
				others.Wait()
			}
		})
		g := r.split(r.World(), 0)
		p := r.pool()
		if r.Rank() != lateRank {
			go func() { // ends with the group
				<-g.Ended()
				others.Done()
			}()
		}

		d := r.wantDivergence(diverge(r, g, p))
		if n := begun.Load(); r.Rank() == lateRank && n <= exchange {
			r.failf("this rank has begun %d exchanges of reports, want more than %d: it was not held", n,
				exchange)
		}

		if side, ok := d.Ranks()[r.Rank()]; !ok || side.Event == "" {
			r.failf("this rank's side is %+v in %+v, want one with an event", side, d)
		}

		// Only a late rank's error, or one that a call itself has returned, has all sides.
		isComplete := r.Rank() == lateRank || d.Kind == symmem.DivergedPlacement
		if isComplete && len(d.Ranks()) != ranks {
			r.failf("the sides are %+v, want those of all ranks", d.Sides)
		}

		for _, side := range d.Sides {
			if slices.Contains(side.Ranks, differentRank) && len(side.Ranks) > 1 {
				r.failf("the sides are %+v, want one of rank %d alone", d.Sides, differentRank)
			}
		}
	})
}

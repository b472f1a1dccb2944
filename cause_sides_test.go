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

// TestDivergenceContainsOwnSide holds one rank before an exchange of reports until the other ranks
// have decided on the cause without it. The error of each rank must then contain at least this
// rank's own call or event.
func TestDivergenceContainsOwnSide(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// exchanges is the number of exchanges of reports without a late rank.
		exchanges int32
		diverge   func(r *rank, g *symmem.Group, p *symmem.Pool) error
	}{
		{"calls", 3, func(r *rank, g *symmem.Group, p *symmem.Pool) error {
			m := r.alloc(p, mib).Memory()
			r.ok(p.Register(r.ctx, g))
			r.ok(g.SetTimeout(3 * time.Second))
			err := g.AllReduce(r.ctx, m, m, int64(8-r.Rank()/2), symmem.Float32, symmem.Sum, nil)
			if err == nil {
				err = r.DefaultStream().Synchronize(r.ctx)
			}
			return err
		}},
		{"placement", 5, func(r *rank, g *symmem.Group, p *symmem.Pool) error {
			r.alloc(p, int64(4096*(1+r.Rank()/2)))
			return g.Check(r.ctx)
		}},
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

// checkOwnSides makes three ranks diverge, of which rank 2 differs from the others. lateRank waits
// before the exchange with the given index.
func checkOwnSides(
	t *testing.T, lateRank int, exchange int32,
	diverge func(r *rank, g *symmem.Group, p *symmem.Pool) error,
) {
	var others sync.WaitGroup // ranks other than lateRank, until the group ends
	others.Add(2)
	o := symmem.Options{Check: symmem.CheckEvery, CallSites: true}
	runRanks(t, 3, o, func(r *rank) {
		// The hook hides the optional methods of a communicator, so all ranks must have the hook.
		var exchanges atomic.Int32
		symmem.HoldReports(r.Runtime, func() {
			if exchanges.Add(1) == exchange+1 && r.Rank() == lateRank {
				others.Wait()
			}
		})
		g := r.split(r.World(), 0)
		p := r.pool()
		go func() {
			<-g.Ended()
			if r.Rank() != lateRank {
				others.Done()
			}
		}()
		d := r.wantDivergence(diverge(r, g, p))
		if side, ok := d.Ranks()[r.Rank()]; !ok || side.Event == "" {
			r.failf("this rank's side is %+v in %+v, want one with an event", side, d)
		}
		// Only a late rank's error, or one that a call itself has returned, has all sides.
		isComplete := r.Rank() == lateRank || d.Kind == symmem.DivergedPlacement
		if isComplete && len(d.Ranks()) != 3 {
			r.failf("the sides are %+v, want those of all ranks", d.Sides)
		}
		for _, side := range d.Sides {
			if slices.Contains(side.Ranks, 2) && len(side.Ranks) > 1 {
				r.failf("the sides are %+v, want one of rank 2 alone", d.Sides)
			}
		}
	})
}

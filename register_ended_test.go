package symmem_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"symmem"
)

// mapSegment maps a segment without buffers.
func mapSegment(r *rank, p *symmem.Pool) {
	r.t.Helper()
	b := r.alloc(p, mib)
	r.ok(b.Free())
}

// A segment stays mapped during Register, even if Trim or Group.Close runs meanwhile.
func TestCloseDuringRegister(t *testing.T) {
	for _, c := range []struct {
		name string
		call func(context.Context, *symmem.Pool, *symmem.Group) error
		want error // of Register
	}{
		{
			name: "Trim",
			call: func(ctx context.Context, p *symmem.Pool, _ *symmem.Group) error {
				return p.Trim(ctx, 0)
			},
			want: nil,
		},
		{
			name: "Group.Close",
			call: func(_ context.Context, _ *symmem.Pool, g *symmem.Group) error {
				return g.Close()
			},
			want: symmem.ErrClosed,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				p := r.pool()
				mapSegment(r, p)
				var g *symmem.Group // created after HoldRegister, which affects only new groups
				var unmapped atomic.Int32
				stopObserving := r.Interop().Observe(symmem.Observer{
					SegmentFree: func(symmem.SegmentEvent) { unmapped.Add(1) },
				})
				defer stopObserving()
				duringRegister := func() {
					callErr := make(chan error)
					go func() { callErr <- c.call(r.ctx, p, g) }()
					r.ok(<-callErr) // does not need a lock that Register holds
					if unmapped.Load() != 0 {
						t.Error("the segment was unmapped during its registration")
					}
				}
				symmem.HoldRegister(r.Runtime, duringRegister)
				g = r.split(r.World(), 0)
				if err := p.Register(r.ctx, g); !errors.Is(err, c.want) {
					r.failf("Register during %s returned %v, want %v", c.name, err, c.want)
				}

				inGroup, inPool := g.Stats().Windows, p.Stats().Windows
				if inGroup != 0 || inPool != 0 {
					r.failf("the group has %d windows and the pool %d, want 0", inGroup, inPool)
				}

				r.ok(p.Trim(r.ctx, 0)) // unmaps the segment after Group.Close
				if unmapped.Load() != 1 {
					r.failf("the segment was unmapped %d times, want 1", unmapped.Load())
				}
			})
		})
	}
}

// After a Trim during Register, Register unmaps the segment. If this fails on one rank, Register
// still succeeds on all ranks, and only the next Trim returns the error.
func TestTrimDuringRegisterFailsNoRank(t *testing.T) {
	const failingRank = 0
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		var unmapErr error
		if r.Rank() == failingRank {
			unmapErr = errors.New("unmapping has failed")
		}

		symmem.HoldEnds(r.Runtime, func() error { return unmapErr })
		p := r.pool()
		mapSegment(r, p)
		duringRegister := func() {
			trimErr := make(chan error)
			go func() { trimErr <- p.Trim(r.ctx, 0) }()
			r.ok(<-trimErr)
		}
		symmem.HoldRegister(r.Runtime, duringRegister)
		g := r.split(r.World(), 0)
		r.ok(p.Register(r.ctx, g))
		if err := p.Trim(r.ctx, 0); !errors.Is(err, unmapErr) {
			r.failf("the next Trim returned %v, want %v", err, unmapErr)
		}

		r.ok(p.Trim(r.ctx, 0))
	})
}

// Between deregistering and unmapping a segment, Trim waits for the other rank. If Close runs
// meanwhile, only one of the two calls unmaps the segment.
func TestCloseDuringTrimUnmapsOnce(t *testing.T) {
	const lateRank, closingRank = 0, 1
	poolClosed := make(chan struct{}) // on closingRank
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		mapSegment(r, p)
		r.ok(p.Register(r.ctx, r.World()))
		deregistered := make(chan struct{})
		var unmapped atomic.Int32
		stopObserving := r.Interop().Observe(symmem.Observer{
			Deregister: func(symmem.WindowEvent) {
				close(deregistered)
				if r.Rank() == lateRank {
					<-poolClosed
				}
			},
			SegmentFree: func(symmem.SegmentEvent) { unmapped.Add(1) },
		})
		defer stopObserving()
		closeErr := make(chan error, 1)
		isClosing := r.Rank() == closingRank
		if isClosing {
			go func() {
				<-deregistered
				closeErr <- p.Close()
				close(poolClosed)
			}()
		}

		r.ok(p.Trim(r.ctx, 0))
		if isClosing {
			r.ok(<-closeErr)
		}

		if n := unmapped.Load(); n != 1 {
			r.failf("the segment was unmapped %d times, want 1", n)
		}
	})
}

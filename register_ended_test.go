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

// A segment stays mapped during Register, even if its pool is trimmed or the group is closed after
// the backend has registered the segment and before the pool records it.
func TestCloseDuringRegister(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(context.Context, *symmem.Pool, *symmem.Group) error
		want error // of Register
	}{
		{
			name: "Trim",
			end: func(ctx context.Context, p *symmem.Pool, _ *symmem.Group) error {
				return p.Trim(ctx, 0)
			},
			want: nil,
		},
		{
			name: "Group.Close",
			end: func(_ context.Context, _ *symmem.Pool, g *symmem.Group) error {
				return g.Close()
			},
			want: symmem.ErrClosed,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				p := r.pool()
				mapSegment(r, p)
				var g *symmem.Group
				var unmapped atomic.Int32
				stopObserving := r.Interop().Observe(symmem.Observer{
					SegmentFree: func(symmem.SegmentEvent) { unmapped.Add(1) },
				})
				defer stopObserving()
				symmem.HoldRegister(r.Runtime, func() { // runs in Register
					done := make(chan error)
					go func() { done <- c.end(r.ctx, p, g) }()
					r.ok(<-done) // does not need a lock that Register holds
					if unmapped.Load() != 0 {
						t.Error("the segment was unmapped during its registration")
					}
				})
				g = r.split(r.World(), 0)
				if err := p.Register(r.ctx, g); !errors.Is(err, c.want) {
					r.failf("Register during %s returned %v, want %v", c.name, err, c.want)
				}

				if n := g.Stats().Windows; n != 0 || p.Stats().Windows != 0 {
					r.failf("the group has %d windows and the pool %d, want 0", n, p.Stats().Windows)
				}

				r.ok(p.Trim(r.ctx, 0)) // unmaps the segment if Register has not
				if unmapped.Load() != 1 {
					r.failf("the segment was unmapped %d times, want 1", unmapped.Load())
				}
			})
		})
	}
}

// If a segment is trimmed during Register, Register unmaps it. If unmapping fails on one rank,
// Register still succeeds on all ranks, and the next Trim returns the error once.
func TestTrimDuringRegisterFailsNoRank(t *testing.T) {
	failure := errors.New("unmapping has failed")
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		var want error
		if r.Rank() == 0 {
			want = failure
		}

		symmem.HoldEnds(r.Runtime, func() error { return want })
		p := r.pool()
		mapSegment(r, p)
		symmem.HoldRegister(r.Runtime, func() { // runs in Register
			done := make(chan error)
			go func() { done <- p.Trim(r.ctx, 0) }()
			r.ok(<-done)
		})
		g := r.split(r.World(), 0)
		r.ok(p.Register(r.ctx, g))
		if err := p.Trim(r.ctx, 0); !errors.Is(err, want) {
			r.failf("the next Trim returned %v, want %v", err, want)
		}

		r.ok(p.Trim(r.ctx, 0))
	})
}

// Trim deregisters a segment and waits for the other rank before it unmaps the segment. If the pool
// is closed at that time, only one of Trim and Close unmaps it.
func TestCloseDuringTrimUnmapsOnce(t *testing.T) {
	const waitedFor, closing = 0, 1 // ranks
	closed := make(chan struct{})   // closed after Close
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		mapSegment(r, p)
		r.ok(p.Register(r.ctx, r.World()))
		deregistered := make(chan struct{})
		var unmapped atomic.Int32
		stopObserving := r.Interop().Observe(symmem.Observer{
			Deregister: func(symmem.WindowEvent) {
				close(deregistered)
				if r.Rank() == waitedFor {
					<-closed
				}
			},
			SegmentFree: func(symmem.SegmentEvent) { unmapped.Add(1) },
		})
		defer stopObserving()
		done := make(chan error, 1)
		if r.Rank() == closing {
			go func() {
				<-deregistered
				done <- p.Close()
				close(closed)
			}()
		} else {
			done <- nil
		}

		r.ok(p.Trim(r.ctx, 0))
		r.ok(<-done)
		if n := unmapped.Load(); n != 1 {
			r.failf("the segment was unmapped %d times, want 1", n)
		}
	})
}

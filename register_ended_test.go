package symmem_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"symmem"
)

// TestCloseDuringRegister trims the pool or closes the group after the backend has registered a
// segment, but before the pool has recorded the registration. Until the pool has recorded it, the
// segment must stay mapped.
func TestCloseDuringRegister(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(context.Context, *symmem.Pool, *symmem.Group) error // called during Register
		want error                                                    // of Register
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
				b := r.alloc(p, mib) // maps the only segment
				r.ok(b.Free())
				var g *symmem.Group
				var unmapped atomic.Int32 // number of unmapped segments
				stopObserving := r.Interop().Observe(symmem.Observer{
					SegmentFree: func(symmem.SegmentEvent) { unmapped.Add(1) },
				})
				defer stopObserving()
				symmem.HoldRegister(r.Runtime, func() { // called during Register below
					done := make(chan error)
					go func() { done <- c.end(r.ctx, p, g) }()
					r.ok(<-done) // would wait forever if Register held the pool's lock
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

				r.ok(p.Trim(r.ctx, 0)) // unmaps the segment unless Register has done so
				if unmapped.Load() != 1 {
					r.failf("the segment was unmapped %d times, want 1", unmapped.Load())
				}
			})
		})
	}
}

// TestTrimDuringRegisterFailsNoRank trims a pool during a registration. The registration then
// unmaps the segment, which fails on rank 0. Register must succeed nevertheless, as on rank 1. The
// next Trim must return the error, and the one after that must succeed.
func TestTrimDuringRegisterFailsNoRank(t *testing.T) {
	failure := errors.New("unmapping has failed")
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		var want error // of unmapping
		if r.Rank() == 0 {
			want = failure
		}

		symmem.HoldEnds(r.Runtime, func() error { return want })
		p := r.pool()
		b := r.alloc(p, mib) // maps the only segment
		r.ok(b.Free())
		symmem.HoldRegister(r.Runtime, func() { // called during Register below
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

// TestCloseDuringTrimUnmapsOnce closes the pool of rank 1 during Trim, which both ranks call. At
// that time, Trim has deregistered the segment and waits for rank 0 before it unmaps the segment.
// Only one of Trim and Close may unmap it.
func TestCloseDuringTrimUnmapsOnce(t *testing.T) {
	const waitedFor, closing = 0, 1 // ranks
	closed := make(chan struct{})   // closed when Close has returned on rank 1
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, mib) // maps the only segment
		r.ok(b.Free())
		r.ok(p.Register(r.ctx, r.World()))
		deregistered := make(chan struct{}) // closed when Trim has deregistered the segment
		var unmapped atomic.Int32           // number of unmapped segments
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
		done := make(chan error, 1) // the result of Close
		if r.Rank() == closing {
			go func() {
				<-deregistered
				done <- p.Close()
				close(closed)
			}()
		} else {
			done <- nil // this rank does not call Close
		}

		r.ok(p.Trim(r.ctx, 0))
		r.ok(<-done)
		if n := unmapped.Load(); n != 1 {
			r.failf("the segment was unmapped %d times, want 1", n)
		}
	})
}

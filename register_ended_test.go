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
	for name, c := range map[string]struct {
		end  func(context.Context, *symmem.Pool, *symmem.Group) error
		want error
	}{
		"Trim": {func(ctx context.Context, p *symmem.Pool, _ *symmem.Group) error {
			return p.Trim(ctx, 0)
		}, nil},
		"Group.Close": {func(_ context.Context, _ *symmem.Pool, g *symmem.Group) error {
			return g.Close()
		}, symmem.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				p := r.pool()
				r.ok(r.alloc(p, mib).Free())
				var g *symmem.Group
				var unmapped atomic.Int32
				defer r.Interop().Observe(symmem.Observer{
					SegmentFree: func(symmem.SegmentEvent) { unmapped.Add(1) },
				})()
				symmem.HoldRegister(r.Runtime, func() { // called during Register below
					done := make(chan error)
					go func() { done <- c.end(r.ctx, p, g) }()
					r.ok(<-done)
					if unmapped.Load() != 0 {
						t.Error("the segment was unmapped during its registration")
					}
				})
				g = r.split(r.World(), 0)
				if err := p.Register(r.ctx, g); !errors.Is(err, c.want) {
					r.failf("Register returned %v, want %v", err, c.want)
				}
				if n := g.Stats().Windows; n != 0 || p.Stats().Windows != 0 {
					r.failf("the group has %d windows and the pool %d, want 0", n, p.Stats().Windows)
				}
				r.ok(p.Trim(r.ctx, 0))
				if unmapped.Load() != 1 {
					r.failf("the segment was unmapped %d times, want 1", unmapped.Load())
				}
			})
		})
	}
}

// TestTrimDuringRegisterFailsNoRank trims a pool during a registration. The registration then
// unmaps the segment, which fails on rank 0. Register must succeed, as on the other rank, and the
// next Trim must return the error.
func TestTrimDuringRegisterFailsNoRank(t *testing.T) {
	failure := errors.New("unmapping has failed")
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		var want error
		if r.Rank() == 0 {
			want = failure
		}
		symmem.HoldEnds(r.Runtime, func() error { return want })
		p := r.pool()
		r.ok(r.alloc(p, mib).Free())
		symmem.HoldRegister(r.Runtime, func() {
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

// TestCloseDuringTrimUnmapsOnce closes a pool while Trim waits for the other rank between the
// deregistration and the unmapping of a segment.
func TestCloseDuringTrimUnmapsOnce(t *testing.T) {
	closed := make(chan struct{})
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		r.ok(r.alloc(p, mib).Free())
		r.ok(p.Register(r.ctx, r.World()))
		deregistered, freed := make(chan struct{}), atomic.Int32{}
		defer r.Interop().Observe(symmem.Observer{
			Deregister: func(symmem.WindowEvent) {
				close(deregistered)
				if r.Rank() == 0 {
					<-closed
				}
			},
			SegmentFree: func(symmem.SegmentEvent) { freed.Add(1) },
		})()
		done := make(chan error, 1)
		if r.Rank() == 1 {
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
		if n := freed.Load(); n != 1 {
			r.failf("the segment was freed %d times, want 1", n)
		}
	})
}

package symmem_test

import (
	"context"
	"sync/atomic"
	"testing"

	"symmem"
)

// TestCloseDuringRegister trims the pool or closes the group after the backend has registered the
// segment, but before the pool has recorded this. The segment must stay mapped until then.
func TestCloseDuringRegister(t *testing.T) {
	for name, end := range map[string]func(context.Context, *symmem.Pool, *symmem.Group) error{
		"Trim": func(ctx context.Context, p *symmem.Pool, _ *symmem.Group) error {
			return p.Trim(ctx, 0)
		},
		"Group.Close": func(_ context.Context, _ *symmem.Pool, g *symmem.Group) error {
			return g.Close()
		},
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
				symmem.HoldRegister(r.Runtime, func() {
					done := make(chan error)
					go func() { done <- end(r.ctx, p, g) }()
					r.ok(<-done)
					if unmapped.Load() != 0 {
						t.Error("the segment was unmapped during its registration")
					}
				})
				g = r.split(r.World(), 0)
				r.wantErr(p.Register(r.ctx, g), symmem.ErrClosed)
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
				if close(deregistered); r.Rank() == 0 {
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

package symmem_test

import (
	"context"
	"sync/atomic"
	"testing"

	"symmem"
)

// TestCloseDuringRegister ends the segment or the group between the
// registration by the backend and the note that the pool makes of it. The segment stays mapped as
// long as the registration may look at it.
func TestCloseDuringRegister(t *testing.T) {
	for name, end := range map[string]func(context.Context, *symmem.Pool, *symmem.Group) error{
		"the segment, by Trim": func(ctx context.Context, p *symmem.Pool, _ *symmem.Group) error {
			return p.Trim(ctx, 0)
		},
		"the group": func(_ context.Context, _ *symmem.Pool, g *symmem.Group) error { return g.Close() },
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
					ended := make(chan error) // another goroutine's call, which has locks of its own
					go func() { ended <- end(r.ctx, p, g) }()
					r.ok(<-ended)
					if unmapped.Load() != 0 {
						t.Error("unmapped during its registration")
					}
				})
				g = r.split(r.World(), 0)
				r.wantErr(p.Register(r.ctx, g), symmem.ErrClosed)
				if n := g.Stats().Windows; n != 0 || p.Stats().Windows != 0 {
					r.failf("%d windows, the pool has %d", n, p.Stats().Windows)
				}
				r.ok(p.Trim(r.ctx, 0))
				if unmapped.Load() != 1 {
					r.failf("unmapped %d times", unmapped.Load())
				}
			})
		})
	}
}

// TestCloseDuringTrimUnmapsOnce closes it on a rank that has deregistered, and
// waits for the other one before it unmaps.
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
		ended := make(chan error, 1)
		if r.Rank() == 1 {
			go func() {
				<-deregistered
				ended <- p.Close()
				close(closed)
			}()
		} else {
			ended <- nil
		}
		r.ok(p.Trim(r.ctx, 0))
		r.ok(<-ended)
		if n := freed.Load(); n != 1 {
			r.failf("the segment was freed %d times", n)
		}
	})
}

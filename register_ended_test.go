package symmem_test

import (
	"context"
	"testing"

	"symmem"
)

// TestWhatEndsDuringARegistrationIsNotRegistered ends the segment or the group between the
// registration by the backend and the note that the pool makes of it.
func TestWhatEndsDuringARegistrationIsNotRegistered(t *testing.T) {
	for name, end := range map[string]func(context.Context, *symmem.Pool, *symmem.Group) error{
		"the segment, by Trim": func(ctx context.Context, p *symmem.Pool, _ *symmem.Group) error {
			return p.Trim(ctx, 0)
		},
		"the pool":  func(_ context.Context, p *symmem.Pool, _ *symmem.Group) error { return p.Close() },
		"the group": func(_ context.Context, _ *symmem.Pool, g *symmem.Group) error { return g.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			together(t, 2, symmem.Options{}, func(r *rank) {
				p := r.pool()
				r.ok(r.alloc(p, mib).Free())
				var g *symmem.Group
				symmem.HoldRegister(r.Runtime, func() {
					ended := make(chan error) // another goroutine's call, which has locks of its own
					go func() { ended <- end(r.ctx, p, g) }()
					r.ok(<-ended)
				})
				g = r.split(r.World(), 0)
				r.is(p.Register(r.ctx, g), symmem.ErrClosed)
				if n := g.Stats().Windows; n != 0 || p.Stats().Windows != 0 {
					r.failf("%d windows, the pool has %d", n, p.Stats().Windows)
				}
			})
		})
	}
}

package symmem_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"symmem"
)

func mapEmptySegment(r *rank, p *symmem.Pool) {
	r.t.Helper()
	b := r.alloc(p, mib)
	r.ok(b.Free())
}

func callInGoroutine(call func() error) error {
	result := make(chan error)
	go func() { result <- call() }()
	return <-result
}

// A segment stays mapped during Register, even if Trim or Group.Close runs meanwhile. After a Trim,
// Register unmaps it. After a Group.Close, the next Trim does.
func TestCloseDuringRegister(t *testing.T) {
	for _, c := range []struct {
		name    string
		call    func(context.Context, *symmem.Pool, *symmem.Group) error
		wantErr error // of Register
	}{
		{
			name: "Trim",
			call: func(ctx context.Context, p *symmem.Pool, _ *symmem.Group) error {
				return p.Trim(ctx, 0)
			},
			wantErr: nil,
		},
		{
			name: "Group.Close",
			call: func(_ context.Context, _ *symmem.Pool, g *symmem.Group) error {
				return g.Close()
			},
			wantErr: symmem.ErrClosed,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				p := r.pool()
				mapEmptySegment(r, p)
				var g *symmem.Group
				var unmapped atomic.Int32
				stopObserving := r.Interop().Observe(symmem.Observer{
					SegmentFree: func(symmem.SegmentEvent) { unmapped.Add(1) },
				})
				defer stopObserving()
				duringRegister := func() {
					r.ok(callInGoroutine(func() error { return c.call(r.ctx, p, g) }))
					if unmapped.Load() != 0 {
						t.Error("the segment was unmapped during its registration")
					}
				}
				symmem.HoldRegister(r.Runtime, duringRegister)
				const color = 0               // of both ranks
				g = r.split(r.World(), color) // after HoldRegister, which affects only new groups
				if err := p.Register(r.ctx, g); !errors.Is(err, c.wantErr) {
					r.failf("Register during %s returned %v, want %v", c.name, err, c.wantErr)
				}

				inGroup, inPool := g.Stats().Windows, p.Stats().Windows
				if inGroup != 0 || inPool != 0 {
					r.failf("the group has %d windows and the pool %d, want 0", inGroup, inPool)
				}

				r.ok(p.Trim(r.ctx, 0))
				if unmapped.Load() != 1 {
					r.failf("the segment was unmapped %d times, want 1", unmapped.Load())
				}
			})
		})
	}
}

// If Register unmaps a segment after a Trim and the unmapping fails on one rank, Register still
// succeeds on all ranks, and the next Trim returns the error once.
func TestTrimDuringRegisterFailsNoRank(t *testing.T) {
	const failingRank = 0
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		var unmapErr error // nil except on failingRank
		if r.Rank() == failingRank {
			unmapErr = errors.New("unmapping has failed")
		}

		symmem.HoldEnds(r.Runtime, func() error { return unmapErr })
		p := r.pool()
		mapEmptySegment(r, p)
		duringRegister := func() {
			r.ok(callInGoroutine(func() error { return p.Trim(r.ctx, 0) }))
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

// Trim waits for the other rank before it unmaps a deregistered segment. If Close runs meanwhile,
// the segment is unmapped only once.
func TestCloseDuringTrimUnmapsOnce(t *testing.T) {
	const lateRank, closingRank = 0, 1
	poolClosed := make(chan struct{}) // on closingRank
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		mapEmptySegment(r, p)
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

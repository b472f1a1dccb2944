package symmem_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"symmem"
)

// fault has a group fail on rank 1 before it makes a call that rank 0 has queued on a stream, and
// waits until both ranks know. On GPUs rank 0 may wait for rank 1 inside the call.
func (r *rank) fault(g *symmem.Group, s *symmem.Stream, call func() error) {
	r.t.Helper()
	if r.Rank() == 1 || !r.Device().Addressable {
		r.ok(r.World().Agree(r.ctx, "rank 0 has called", 1))
	}
	if r.Rank() == 1 {
		g.Abort()
	}
	_ = call() // rank 0 may hear of the fault already
	if r.Rank() == 0 && r.Device().Addressable {
		r.ok(r.World().Agree(r.ctx, "rank 0 has called", 1))
	}
	if err := s.Synchronize(r.ctx); err == nil && !errors.Is(g.Err(), symmem.ErrAborted) {
		r.failf("the group has not failed: %v", g.Err())
	}
	r.is(g.Err(), symmem.ErrAborted)
}

// TestARefusedCallLeavesThePoolsAlike has one rank queue a call, or capture it, that the other one
// is refused: what is allocated next lies at one place on both.
func TestARefusedCallLeavesThePoolsAlike(t *testing.T) {
	for _, level := range []symmem.CheckLevel{
		symmem.CheckOff, symmem.CheckRegistration, symmem.CheckEvery,
	} {
		t.Run(level.String(), func(t *testing.T) {
			together(t, 2, symmem.Options{Check: level, CheckInterval: -1}, func(r *rank) {
				p := r.pool()
				a := r.window(p, 4096)
				g := r.split(r.World(), 0)
				r.ok(p.Register(r.ctx, g))
				s, err := r.NewStream()
				r.ok(err)
				m := a.Memory()
				r.fault(g, s, func() error {
					return g.AllReduce(r.ctx, m, m, 100, symmem.Int32, symmem.Sum, s)
				})
				r.ok(g.Close())
				r.ok(a.Free())
				r.sums(r.World(), r.window(p, 4096))
				r.ok(r.World().Check(r.ctx))
				g = r.split(r.World(), 0)
				r.sums(g, r.window(p, 8*mib))
			})
		})
	}
}

// TestACaptureOfOneRankIsNamedToAll has rank 0 alone capture when both register, or make the first
// call on new memory.
func TestACaptureOfOneRankIsNamedToAll(t *testing.T) {
	together(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, mib)
		s, err := r.NewStream()
		r.ok(err)
		if r.Rank() == 0 {
			r.ok(s.BeginCapture())
		}
		r.is(p.Register(r.ctx, r.World()), symmem.ErrCapturing)
		r.sums(r.World(), b)
		if r.World().IsSymmetric(b.Memory()) {
			r.failf("memory was registered while a rank captured")
		}
		if r.Rank() == 0 {
			g, err := s.EndCapture()
			r.ok(err)
			r.ok(g.Close())
		}
		r.ok(p.Register(r.ctx, r.World()))
		r.sums(r.World(), b)
		if !r.World().IsSymmetric(b.Memory()) {
			r.failf("the memory is not registered")
		}
	})
}

// TestCapturesBesideRegistrations has a goroutine of rank 0 capture all the time.
func TestCapturesBesideRegistrations(t *testing.T) {
	for _, level := range []symmem.CheckLevel{symmem.CheckOff, symmem.CheckRegistration} {
		t.Run(level.String(), func(t *testing.T) {
			together(t, 2, symmem.Options{Check: level}, func(r *rank) {
				p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 1 << 16})
				s, err := r.NewStream()
				r.ok(err)
				var over atomic.Bool
				captured := make(chan error, 1)
				go func() {
					for r.Rank() == 0 && !over.Load() {
						err := s.BeginCapture()
						if err == nil {
							_, err = s.EndCapture()
						}
						if err != nil {
							captured <- err
							return
						}
					}
					captured <- nil
				}()
				refused := 0
				for i := range int64(12) {
					b := r.alloc(p, 1<<16<<min(i, 8))
					for {
						err := p.Register(r.ctx, r.World())
						if err == nil {
							break
						}
						r.is(err, symmem.ErrCapturing)
						refused++
					}
					r.sums(r.World(), b)
					r.ok(r.World().Agree(r.ctx, "refused", int64(refused)))
				}
				over.Store(true)
				r.ok(<-captured)
			})
		})
	}
}

// messagesInAGraph captures a Send on rank 0 and a Recv on rank 1.
func (r *rank) messagesInAGraph(a, b symmem.Buffer, hold bool) *symmem.Graph {
	r.t.Helper()
	return r.capture(func(s *symmem.Stream) {
		if hold {
			r.ok(a.UseOn(s))
			r.ok(b.UseOn(s))
		}
		if r.Rank() == 0 {
			r.ok(r.World().Send(r.ctx, a.Memory(), 100, symmem.Float32, 1, s))
		} else {
			r.ok(r.World().Recv(r.ctx, b.Memory(), 100, symmem.Float32, 0, s))
		}
	})
}

func TestAGraphThatHoldsOtherBuffersOnEachRank(t *testing.T) {
	together(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.window(p, 4096), r.window(p, 4096)
		g := r.messagesInAGraph(a, b, false)
		r.ok(g.Launch(r.DefaultStream()))
		r.synchronize()
		r.sums(r.World(), r.window(p, 8*mib))
		r.ok(r.World().Check(r.ctx))
		r.ok(g.Close())
		r.ok(r.World().Check(r.ctx))
		r.ok(a.Free())
		r.ok(b.Free())
		r.ok(r.World().Check(r.ctx))
	})
}

func TestAFreeOfABufferThatOneRankHoldsIsNamed(t *testing.T) {
	surviving(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.window(p, 4096), r.window(p, 4096)
		g := r.messagesInAGraph(a, b, false)
		r.ok(a.Free())
		d := r.diverged(r.World().Check(r.ctx))
		if !strings.Contains(d.Message, "parked free") || !strings.Contains(d.Message, "UseOn") {
			r.failf("%v", d)
		}
		r.ok(g.Close())
	})
}

func TestABufferIsHeldOnAllRanksByUseOn(t *testing.T) {
	together(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.window(p, 4096), r.window(p, 4096)
		g := r.messagesInAGraph(a, b, true)
		if s := p.Stats(); s.Pinned != 8192 {
			r.failf("%+v", s)
		}
		r.ok(a.Free())
		r.ok(b.Free())
		r.ok(r.World().Check(r.ctx))
		r.ok(g.Launch(r.DefaultStream()))
		r.synchronize()
		r.ok(g.Close())
		c := r.window(p, 4096)
		if c.Offset() != a.Offset() {
			r.failf("the block did not come back")
		}
		r.sums(r.World(), c)
		r.ok(r.World().Check(r.ctx))
	})
}

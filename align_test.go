package symmem_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"symmem"
)

// faultPath is the path of groups that fail with calls under way: on GPUs a window kernel of NCCL's
// that was aborted keeps its memory until the process ends.
func faultPath() symmem.PathChoice {
	if os.Getenv(backendVariable) == "nccl" {
		return symmem.PathPlain
	}
	return symmem.PathWindow
}

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
	if err := s.Synchronize(r.ctx); err == nil && !errors.Is(g.Cause(r.ctx), symmem.ErrAborted) {
		r.failf("the group has not failed: %v", g.Cause(r.ctx))
	}
	r.is(g.Cause(r.ctx), symmem.ErrAborted)
}

// TestARefusedCallLeavesThePoolsAlike has one rank queue a call, or capture it, that the other one
// is refused: what is allocated next lies at one place on both.
func TestARefusedCallLeavesThePoolsAlike(t *testing.T) {
	for _, level := range []symmem.CheckLevel{
		symmem.CheckOff, symmem.CheckRegistration, symmem.CheckEvery,
	} {
		t.Run(level.String(), func(t *testing.T) {
			together(t, 2, symmem.Options{
				Check: level, CheckInterval: -1, Path: faultPath(),
			}, func(r *rank) {
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

// TestACallThatWasNeverMadeLeavesThePoolsAlike has the fault come before one rank makes the call.
func TestACallThatWasNeverMadeLeavesThePoolsAlike(t *testing.T) {
	for _, captured := range []bool{false, true} {
		t.Run(fmt.Sprintf("captured=%v", captured), func(t *testing.T) {
			together(t, 2, symmem.Options{Path: faultPath()}, func(r *rank) {
				p := r.pool()
				a := r.window(p, 4096)
				g := r.split(r.World(), 0)
				r.ok(p.Register(r.ctx, g))
				s, err := r.NewStream()
				r.ok(err)
				m := a.Memory()
				if captured {
					r.ok(s.BeginCapture())
				}
				if r.Rank() == 0 {
					r.ok(a.UseOn(s)) // as the call does
					_ = g.AllReduce(r.ctx, m, m, 100, symmem.Int32, symmem.Sum, s)
				}
				g.Abort()
				if captured {
					graph, err := s.EndCapture()
					r.ok(err)
					defer func() { r.ok(graph.Close()) }()
				}
				_ = s.Synchronize(r.ctx)
				r.ok(g.Close())
				r.ok(a.Free())
				g = r.split(r.World(), 0)
				r.sums(g, r.window(p, 4096))
				r.sums(r.World(), r.window(p, 8*mib))
				r.ok(r.World().Check(r.ctx))
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

// TestCapturesDuringRegistrations has a goroutine of rank 0 capture all the time.
func TestCapturesDuringRegistrations(t *testing.T) {
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

// TestABufferThatOneRankHasAfterAFaultIsNamed has rank 1 allocate a buffer before it sees the
// fault.
func TestABufferThatOneRankHasAfterAFaultIsNamed(t *testing.T) {
	together(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g := r.split(r.World(), 0)
		r.ok(p.Register(r.ctx, g))
		var odd symmem.Buffer
		if r.Rank() == 1 {
			odd = r.alloc(p, 4096)
		}
		g.Abort()
		r.is(g.Cause(r.ctx), symmem.ErrAborted)
		r.ok(g.Close())
		g = r.split(r.World(), 0)
		for range 2 {
			d := r.diverged(r.sum(g, a))
			if !strings.Contains(d.Message, "live block of 4096 B") || len(d.Sides) != 2 {
				r.failf("%+v", d)
			}
		}
		if r.Rank() == 1 {
			r.ok(odd.Free())
		}
		r.sums(g, a)
		r.sums(r.World(), r.window(p, mib))
	})
}

// TestARankThatHasNotSeenTheFault: rank 0 knows of the fault of a group when both ranks use the
// pool in another one, and rank 1 does not. Buffers from before the fault work; one that was made
// since does not.
func TestARankThatHasNotSeenTheFault(t *testing.T) {
	var said answers
	together(t, 2, symmem.Options{CheckInterval: -1, Path: faultPath()}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g, h := r.split(r.World(), 0), r.split(r.World(), 0)
		r.ok(p.Register(r.ctx, g))
		r.sums(h, a)
		if r.Rank() == 0 {
			g.Abort()
		}
		r.sums(h, a)
		err := r.sum(h, r.alloc(p, 4096))
		if err == nil || !strings.Contains(err.Error(), "let all ranks of a pool see the fault") {
			r.failf("got %v", err)
		}
		said.give(r, h.Cause(r.ctx))
		<-g.Ended()
		r.is(g.Cause(r.ctx), symmem.ErrAborted)
		h = r.split(r.World(), 0)
		r.sums(h, a)
	})
	said.alike(t, 2)
}

// TestAPoolThatOneRankHasNotUsed has rank 0 alone allocate before the fault.
func TestAPoolThatOneRankHasNotUsed(t *testing.T) {
	together(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		g := r.split(r.World(), 0)
		if r.Rank() == 0 {
			r.ok(r.alloc(p, mib).Free())
		}
		g.Abort()
		r.is(g.Cause(r.ctx), symmem.ErrAborted)
		r.ok(p.Register(r.ctx, r.World()))
		r.sums(r.World(), r.window(p, mib))
		r.ok(r.World().Check(r.ctx))
	})
}

// TestMemoryThatIsNamedByItsAddress: a group has kept the plan of a call on such memory when
// another group fails.
func TestMemoryThatIsNamedByItsAddress(t *testing.T) {
	together(t, 2, symmem.Options{Check: symmem.CheckRegistration}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g := r.split(r.World(), 0)
		m := r.named(a.Memory().Address(), 4096)
		add := func() error {
			return r.World().AllReduce(r.ctx, m, m, 1024, symmem.Float32, symmem.Sum, nil)
		}
		r.ok(add())
		r.synchronize()
		var odd symmem.Buffer
		if r.Rank() == 1 {
			odd = r.alloc(p, 4096)
		}
		g.Abort()
		r.is(g.Cause(r.ctx), symmem.ErrAborted)
		r.ok(add()) // of memory from before the fault
		r.synchronize()
		old, b := m, r.alloc(p, 4096)
		m = r.named(b.Memory().Address(), 4096)
		r.diverged(add())
		s, err := r.NewStream()
		r.ok(err)
		r.ok(s.BeginCapture())
		r.is(r.World().AllReduce(r.ctx, m, m, 1024, symmem.Float32, symmem.Sum, s), symmem.ErrCapturing)
		graph, err := s.EndCapture()
		r.ok(err)
		r.ok(graph.Close())
		if r.Rank() == 1 {
			r.ok(odd.Free())
		}
		r.ok(b.Free())
		r.ok(p.Register(r.ctx, r.World()))
		m = old
		r.ok(add())
		r.synchronize()
		r.ok(r.World().Check(r.ctx))
	})
}

// TestMemoryOfAGraphComesBackWithTrim: a graph holds a freed buffer on rank 0 when the pools are
// realigned.
func TestMemoryOfAGraphComesBackWithTrim(t *testing.T) {
	together(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g := r.split(r.World(), 0)
		var graph *symmem.Graph
		if r.Rank() == 0 {
			graph = r.capture(func(s *symmem.Stream) { r.ok(a.UseOn(s)) })
		}
		r.ok(a.Free())
		g.Abort()
		r.is(g.Cause(r.ctx), symmem.ErrAborted)
		g = r.split(r.World(), 0)
		if graph != nil {
			r.ok(graph.Close())
		}
		b := r.window(p, 4096)
		r.sums(g, b)
		r.ok(b.Free())
		if s := p.Stats(); s.Used == 0 {
			r.failf("what a graph had held came back: %+v", s)
		}
		r.ok(p.Trim(r.ctx, 0))
		if s := p.Stats(); s.Used != 0 || s.Segments != 0 {
			r.failf("after Trim: %+v", s)
		}
		r.sums(r.World(), r.window(p, 4096))
		r.ok(r.World().Check(r.ctx))
	})
}

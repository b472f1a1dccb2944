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

// faultPath returns a path for groups that a test makes fail during a call. It avoids NCCL's
// window kernels, because an aborted window kernel keeps its memory until the process exits.
func faultPath() symmem.PathChoice {
	if os.Getenv(backendVariable) == "nccl" {
		return symmem.PathPlain
	}

	return symmem.PathWindow
}

// failGroup aborts a group on rank 1, whose call then fails, and waits until both ranks have seen
// the fault. On the host, rank 0 queues its call before the abort. On GPUs, the call may wait for
// rank 1, so rank 0 makes it while rank 1 aborts the group.
func (r *rank) failGroup(g *symmem.Group, s *symmem.Stream, call func() error) {
	r.t.Helper()
	if r.Rank() == 1 || !r.Device().Addressable {
		r.ok(r.World().Agree(r.ctx, "rank 0 has called", 1))
	}

	if r.Rank() == 1 {
		g.Abort()
	}

	_ = call() // rank 0 may see the fault here
	if r.Rank() == 0 && r.Device().Addressable {
		r.ok(r.World().Agree(r.ctx, "rank 0 has called", 1))
	}

	if err := s.Synchronize(r.ctx); err == nil && !errors.Is(g.Cause(r.ctx), symmem.ErrAborted) {
		r.failf("Cause() = %v, want ErrAborted", g.Cause(r.ctx))
	}

	r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
}

// TestPoolsRealignAfterRejectedCall makes a call that succeeds on rank 0 and is rejected on rank 1.
// Both ranks must then place the next buffers at the same offsets.
func TestPoolsRealignAfterRejectedCall(t *testing.T) {
	for _, level := range []symmem.CheckLevel{
		symmem.CheckOff, symmem.CheckRegistration, symmem.CheckEvery,
	} {
		t.Run(level.String(), func(t *testing.T) {
			runRanks(t, 2, symmem.Options{
				Check: level, CheckInterval: -1, Path: faultPath(),
			}, func(r *rank) {
				p := r.pool()
				a := r.window(p, 4096)
				g := r.split(r.World(), 0)
				r.ok(p.Register(r.ctx, g))
				s, err := r.NewStream()
				r.ok(err)
				m := a.Memory()
				r.failGroup(g, s, func() error {
					return g.AllReduce(r.ctx, m, m, 100, symmem.Int32, symmem.Sum, s)
				})
				r.ok(g.Close())
				r.ok(a.Free())
				r.checkSum(r.World(), r.window(p, 4096))
				r.ok(r.World().Check(r.ctx))
				g = r.split(r.World(), 0)
				r.checkSum(g, r.window(p, 8*mib))
			})
		})
	}
}

// TestPoolsRealignAfterMissingCall aborts the group after only rank 0 has made a call.
func TestPoolsRealignAfterMissingCall(t *testing.T) {
	for _, captured := range []bool{false, true} {
		t.Run(fmt.Sprintf("captured=%v", captured), func(t *testing.T) {
			runRanks(t, 2, symmem.Options{Path: faultPath()}, func(r *rank) {
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
					r.ok(a.UseOn(s)) // as the call would do
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
				r.checkSum(g, r.window(p, 4096))
				r.checkSum(r.World(), r.window(p, 8*mib))
				r.ok(r.World().Check(r.ctx))
			})
		})
	}
}

// TestCaptureOnOneRankFailsRegisterOnAll calls Register while only rank 0 captures. During that
// capture, the ranks also make the first call on the memory.
func TestCaptureOnOneRankFailsRegisterOnAll(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, mib)
		s, err := r.NewStream()
		r.ok(err)
		if r.Rank() == 0 {
			r.ok(s.BeginCapture())
		}

		r.wantErr(p.Register(r.ctx, r.World()), symmem.ErrCapturing)
		r.checkSum(r.World(), b)
		if r.World().IsSymmetric(b.Memory()) {
			r.failf("IsSymmetric = true while a rank captures, want false")
		}

		if r.Rank() == 0 {
			g, err := s.EndCapture()
			r.ok(err)
			r.ok(g.Close())
		}

		r.ok(p.Register(r.ctx, r.World()))
		r.checkSum(r.World(), b)
		if !r.World().IsSymmetric(b.Memory()) {
			r.failf("IsSymmetric = false after Register, want true")
		}
	})
}

// TestRegisterDuringCaptures registers memory while a goroutine of rank 0 captures in a loop.
func TestRegisterDuringCaptures(t *testing.T) {
	for _, level := range []symmem.CheckLevel{symmem.CheckOff, symmem.CheckRegistration} {
		t.Run(level.String(), func(t *testing.T) {
			runRanks(t, 2, symmem.Options{Check: level}, func(r *rank) {
				p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 1 << 16})
				s, err := r.NewStream()
				r.ok(err)
				var stop atomic.Bool
				captured := make(chan error, 1)
				go func() {
					for r.Rank() == 0 && !stop.Load() {
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

						r.wantErr(err, symmem.ErrCapturing)
						refused++
					}

					r.checkSum(r.World(), b)
					r.ok(r.World().Agree(r.ctx, "refused", int64(refused)))
				}

				stop.Store(true)
				r.ok(<-captured)
			})
		})
	}
}

// captureMessage captures a Send from a on rank 0 and a Recv into b on rank 1. If pinBoth is set,
// each rank pins a and b.
func (r *rank) captureMessage(a, b symmem.Buffer, pinBoth bool) *symmem.Graph {
	r.t.Helper()
	return r.capture(func(s *symmem.Stream) {
		if pinBoth {
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

func TestGraphPinsDifferentBuffersPerRank(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.window(p, 4096), r.window(p, 4096)
		g := r.captureMessage(a, b, false)
		r.ok(g.Launch(r.DefaultStream()))
		r.synchronize()
		r.checkSum(r.World(), r.window(p, 8*mib))
		r.ok(r.World().Check(r.ctx))
		r.ok(g.Close())
		r.ok(r.World().Check(r.ctx))
		r.ok(a.Free())
		r.ok(b.Free())
		r.ok(r.World().Check(r.ctx))
	})
}

func TestFreeOfBufferPinnedOnOneRankDiverges(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.window(p, 4096), r.window(p, 4096)
		g := r.captureMessage(a, b, false)
		r.ok(a.Free())
		d := r.wantDivergence(r.World().Check(r.ctx))
		if !strings.Contains(d.Message, "parked free") || !strings.Contains(d.Message, "UseOn") {
			r.failf("got error %q, want one that names the parked free and UseOn", d.Message)
		}

		r.ok(g.Close())
	})
}

func TestUseOnPinsBufferOnAllRanks(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.window(p, 4096), r.window(p, 4096)
		g := r.captureMessage(a, b, true)
		if s := p.Stats(); s.Pinned != 8192 {
			r.failf("%d bytes are pinned, want 8192", s.Pinned)
		}

		r.ok(a.Free())
		r.ok(b.Free())
		r.ok(r.World().Check(r.ctx))
		r.ok(g.Launch(r.DefaultStream()))
		r.synchronize()
		r.ok(g.Close())
		c := r.window(p, 4096)
		if c.Offset() != a.Offset() {
			r.failf("the new block is at %#x, want %#x", c.Offset(), a.Offset())
		}

		r.checkSum(r.World(), c)
		r.ok(r.World().Check(r.ctx))
	})
}

// TestExtraBufferAfterFaultDiverges allocates a buffer on rank 1 only, before that rank sees the
// fault.
func TestExtraBufferAfterFaultDiverges(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g := r.split(r.World(), 0)
		r.ok(p.Register(r.ctx, g))
		var extra symmem.Buffer
		if r.Rank() == 1 {
			extra = r.alloc(p, 4096)
		}

		g.Abort()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		r.ok(g.Close())
		g = r.split(r.World(), 0)
		for range 2 {
			d := r.wantDivergence(r.sum(g, a))
			if !strings.Contains(d.Message, "live block of 4096 B") || len(d.Sides) != 2 {
				r.failf("got %+v, want 2 sides and the live block of 4096 B", d)
			}
		}

		if r.Rank() == 1 {
			r.ok(extra.Free())
		}

		r.checkSum(g, a)
		r.checkSum(r.World(), r.window(p, mib))
	})
}

// TestRankUnawareOfFault uses a pool in group h after only rank 0 has seen the fault of group g.
// Collectives must succeed on buffers that are older than the fault, and fail on newer buffers.
func TestRankUnawareOfFault(t *testing.T) {
	var texts errorTexts
	runRanks(t, 2, symmem.Options{CheckInterval: -1, Path: faultPath()}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g, h := r.split(r.World(), 0), r.split(r.World(), 0)
		r.ok(p.Register(r.ctx, g))
		r.checkSum(h, a)
		if r.Rank() == 0 {
			g.Abort()
		}

		r.checkSum(h, a)
		err := r.sum(h, r.alloc(p, 4096))
		if err == nil || !strings.Contains(err.Error(), "let all ranks of a pool see the fault") {
			r.failf("got %v, want advice to let all ranks see the fault", err)
		}

		texts.add(r, h.Cause(r.ctx))
		<-g.Ended()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		h = r.split(r.World(), 0)
		r.checkSum(h, a)
	})
	texts.requireSame(t, 2)
}

// TestRealignmentOfPoolUsedByOneRank allocates and frees a buffer on rank 0 only, before the
// fault.
func TestRealignmentOfPoolUsedByOneRank(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		g := r.split(r.World(), 0)
		if r.Rank() == 0 {
			r.ok(r.alloc(p, mib).Free())
		}

		g.Abort()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		r.ok(p.Register(r.ctx, r.World()))
		r.checkSum(r.World(), r.window(p, mib))
		r.ok(r.World().Check(r.ctx))
	})
}

// TestRealignmentOfMemoryByAddress makes another group fail after the world has cached the plan
// of a call whose memory is passed by address.
func TestRealignmentOfMemoryByAddress(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckRegistration}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g := r.split(r.World(), 0)
		m := r.memoryAt(a.Memory().Address(), 4096)
		add := func() error {
			return r.World().AllReduce(r.ctx, m, m, 1024, symmem.Float32, symmem.Sum, nil)
		}
		r.ok(add())
		r.synchronize()
		var extra symmem.Buffer
		if r.Rank() == 1 {
			extra = r.alloc(p, 4096)
		}

		g.Abort()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		r.ok(add()) // this memory was allocated before the fault
		r.synchronize()
		oldMemory, b := m, r.alloc(p, 4096)
		m = r.memoryAt(b.Memory().Address(), 4096)
		r.wantDivergence(add())
		s, err := r.NewStream()
		r.ok(err)
		r.ok(s.BeginCapture())
		err = r.World().AllReduce(r.ctx, m, m, 1024, symmem.Float32, symmem.Sum, s)
		r.wantErr(err, symmem.ErrCapturing)
		graph, err := s.EndCapture()
		r.ok(err)
		r.ok(graph.Close())
		if r.Rank() == 1 {
			r.ok(extra.Free())
		}

		r.ok(b.Free())
		r.ok(p.Register(r.ctx, r.World()))
		m = oldMemory
		r.ok(add())
		r.synchronize()
		r.ok(r.World().Check(r.ctx))
	})
}

// TestTrimReclaimsGraphMemoryAfterFault realigns the pools while a graph of rank 0 pins a freed
// buffer.
func TestTrimReclaimsGraphMemoryAfterFault(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g := r.split(r.World(), 0)
		var graph *symmem.Graph
		if r.Rank() == 0 {
			graph = r.capture(func(s *symmem.Stream) { r.ok(a.UseOn(s)) })
		}

		r.ok(a.Free())
		g.Abort()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		g = r.split(r.World(), 0)
		if graph != nil {
			r.ok(graph.Close())
		}

		b := r.window(p, 4096)
		r.checkSum(g, b)
		r.ok(b.Free())
		if s := p.Stats(); s.Used == 0 {
			r.failf("got %+v before Trim, want Used to include the memory that the graph pinned", s)
		}

		r.ok(p.Trim(r.ctx, 0))
		if s := p.Stats(); s.Used != 0 || s.Segments != 0 {
			r.failf("after Trim: got %+v, want no segments", s)
		}

		r.checkSum(r.World(), r.window(p, 4096))
		r.ok(r.World().Check(r.ctx))
	})
}

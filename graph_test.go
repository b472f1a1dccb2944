package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

func (r *rank) capture(work func(s *symmem.Stream)) *symmem.Graph {
	r.t.Helper()
	s := r.DefaultStream()
	r.ok(s.BeginCapture())
	work(s)
	g, err := s.EndCapture()
	r.ok(err)
	return g
}

func TestStreamOfOtherRuntimeRejectsGraph(t *testing.T) {
	runtimes := openRanks(t, 2, symmem.Options{})
	eachRank(runtimes, func(rt *symmem.Runtime) {
		r := &rank{Runtime: rt, t: t, ctx: t.Context()}
		g := r.capture(func(*symmem.Stream) {})
		r.wantErr(g.Launch(runtimes[1-r.Rank()].DefaultStream()), symmem.ErrInvalid)
		r.ok(g.Launch(r.DefaultStream()))
		r.synchronize()
		r.ok(g.Close())
		r.ok(r.Close())
	})
}

func TestLiveGraphKeepsCapturedBlocks(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		m := b.Memory()
		g := r.capture(func(s *symmem.Stream) {
			for range 2 {
				r.ok(r.World().AllReduce(r.ctx, m, m, 1024, symmem.Float32, symmem.Sum, s))
			}
		})
		r.ok(b.Free())
		if s := p.Stats(); s.Pinned != mib {
			r.failf("%d bytes are pinned, want %d", s.Pinned, mib)
		}

		var others []symmem.Buffer
		for range 8 {
			c := r.alloc(p, mib)
			if c.Address() == b.Address() {
				r.failf("Alloc returned a pinned block")
			}

			others = append(others, c)
		}

		for _, c := range others {
			r.ok(c.Free())
		}

		r.ok(g.Launch(r.DefaultStream()))
		r.synchronize()
		r.ok(g.Close())
		r.ok(g.Close())
		r.wantErr(g.Launch(r.DefaultStream()), symmem.ErrClosed)
		if c := r.alloc(p, mib); c.Address() != b.Address() || p.Stats().Pinned != 0 {
			r.failf("got %+v after Close of the graph, want the block reused and nothing pinned", p.Stats())
		}

		r.ok(r.World().Check(r.ctx))
	})
}

// TestTrimKeepsFreedMemoryOfLiveGraph replays a graph after a Trim. Only a Trim after the graph has
// been closed may unmap the segment.
func TestTrimKeepsFreedMemoryOfLiveGraph(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		m, err := b.Memory().Slice(0, 4)
		r.ok(err)
		input, output := r.alloc(r.pool(), 4), r.alloc(r.pool(), 4)
		src, err := input.Memory().Slice(0, 4)
		r.ok(err)
		dst, err := output.Memory().Slice(0, 4)
		r.ok(err)
		g := r.capture(func(s *symmem.Stream) {
			r.ok(s.Copy(m, src))
			r.ok(r.World().AllReduce(r.ctx, m, m, 1, symmem.Int32, symmem.Sum, s))
			r.ok(s.Copy(dst, m))
		})
		r.ok(b.Free())
		r.ok(p.Trim(r.ctx, 0))
		if s := p.Stats(); s.Pinned != mib || s.Segments != 1 || s.Windows != 1 {
			r.failf("after Trim with a live graph: got %+v, want the pinned segment", s)
		}

		s, sum := r.DefaultStream(), []int32{1}
		r.ok(s.Copy(src, symmem.Host(sum)))
		r.ok(g.Launch(s))
		r.ok(s.Copy(symmem.Host(sum), dst))
		r.synchronize()
		if sum[0] != 2 {
			r.failf("got %d from the replay after Trim, want 2", sum[0])
		}

		r.ok(g.Close())
		r.ok(p.Trim(r.ctx, 0))
		if s := p.Stats(); s.Pinned != 0 || s.Segments != 0 || s.Windows != 0 {
			r.failf("after Trim without the graph: got %+v, want no segments", s)
		}
	})
}

// TestFailedCaptureReleasesMemory forgets a stream that is being captured. Afterwards, the rank can
// register again, and the buffers of the capture are no longer pinned.
func TestFailedCaptureReleasesMemory(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, mib)
		s, err := r.Interop().AdoptStream(r.stream().Handle())
		r.ok(err)
		r.ok(s.BeginCapture())
		r.ok(s.Fill(b.Memory(), 3))
		r.Interop().ForgetStream(s)
		_, err = s.EndCapture()
		r.wantErr(err, symmem.ErrClosed)
		r.ok(p.Register(r.ctx, r.World()))
		r.ok(b.Free())
		if s := p.Stats(); s.Pinned != 0 || s.Used != 0 {
			r.failf("got %+v, want nothing pinned or used", s)
		}
	})
}

func TestGraphReplayAfterPoolGrowth(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		m := b.Memory()
		g := r.capture(func(s *symmem.Stream) {
			r.ok(r.World().AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		})
		for range 3 {
			r.checkSum(r.World(), r.window(p, 16*mib))
			r.fill(b, 1)
			r.ok(g.Launch(r.DefaultStream()))
			r.checkSum(r.World(), r.alloc(p, 4096))
			r.checkAll(b, 2)
		}

		r.ok(g.Close())
	})
}

func TestGraphReplayDuringPoolGrowth(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const replays, batch = 1000, 100
		p, s := r.pool(), r.DefaultStream()
		send, recv := r.alloc(p, mib), r.window(p, mib)
		r.fill(send, float32(r.Rank()+1))
		g := r.capture(func(s *symmem.Stream) {
			r.ok(r.World().AllReduce(r.ctx, send.Memory(), recv.Memory(), mib/4, symmem.Float32,
				symmem.Sum, s))
		})
		r.ok(send.Free())
		r.ok(recv.Free())
		for range replays / batch {
			r.ok(s.Fill(symmem.ForeignMemory(recv.Address(), mib), 0))
			for range batch {
				r.ok(g.Launch(s))
			}

			v := read[float32](r, symmem.ForeignMemory(recv.Address(), mib))
			if v[0] != 3 || v[mib/4-1] != 3 {
				r.failf("got %v and %v as the first and last sums, want 3", v[0], v[mib/4-1])
			}

			// The pool grows and must not reuse the graph's memory.
			b := r.alloc(p, 3*mib)
			for _, pinned := range []symmem.Buffer{send, recv} {
				if b.Address() < pinned.Address()+uintptr(mib) &&
					pinned.Address() < b.Address()+uintptr(b.Size()) {
					r.failf("the buffer at %#x overlaps memory of the graph", b.Address())
				}
			}

			r.checkSum(r.World(), b)
		}

		if n := r.World().Stats().Paths["window"]; n != replays+replays/batch {
			r.failf("%d collectives took the window path, want %d", n, replays+replays/batch)
		}

		if n := p.Stats().Segments; n < 3 {
			r.failf("%d segments, want at least 3", n)
		}

		r.ok(g.Close())
	})
}

func TestCaptureWithoutWindowTakesPlainPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, 4096)
		m := b.Memory()
		g := r.capture(func(s *symmem.Stream) {
			r.ok(r.World().AllReduce(r.ctx, m, m, 1024, symmem.Float32, symmem.Sum, s))
		})
		r.fill(b, 1)
		r.ok(g.Launch(r.DefaultStream()))
		r.synchronize()
		r.checkAll(b, 2)
		if paths := r.World().Stats().Paths; paths["plain"] != 1 || paths["window"] != 0 {
			r.failf("Paths = %v, want 1 plain", paths)
		}

		// The first call outside a capture registers the memory and takes the window path.
		r.checkSum(r.World(), b)
		if paths := r.World().Stats().Paths; paths["window"] != 1 {
			r.failf("Paths = %v, want 1 window", paths)
		}

		r.ok(g.Close())
	})
}

func TestNilGraph(t *testing.T) {
	for _, g := range []*symmem.Graph{nil, {}} {
		for _, err := range []error{g.Launch(nil), g.Close()} {
			if !errors.Is(err, symmem.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		}
	}
}

func TestInvalidCaptures(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		s := r.DefaultStream()
		if _, err := s.EndCapture(); err == nil {
			r.failf("EndCapture succeeded without BeginCapture")
		}

		r.ok(s.BeginCapture())
		if err := s.BeginCapture(); err == nil {
			r.failf("BeginCapture succeeded during a capture")
		}

		g, err := s.EndCapture()
		r.ok(err)
		r.ok(g.Launch(s))
		r.synchronize()
		r.ok(g.Close())
	})
}

// TestCaptureWaitsForRegistration checks that BeginCapture times out during a registration, and
// that it succeeds afterwards.
func TestCaptureWaitsForRegistration(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: 2 * time.Second}, func(r *rank) {
		s := r.DefaultStream()
		release := symmem.HoldRegistration(r.Runtime)
		var late *symmem.TimeoutError
		if err := s.BeginCapture(); !errors.As(err, &late) ||
			!strings.Contains(err.Error(), "beginning a capture: another goroutine") {
			r.failf("got %v, want a TimeoutError about the registration", err)
		}

		release()
		r.ok(s.BeginCapture())
		graph, err := s.EndCapture()
		r.ok(err)
		r.ok(graph.Close())
	})
}

// TestMemoryReleaseWaitsForWorkBeforeCapture trims a pool while a stream is being captured. The
// captured work does not use the pool, but work that was queued before the capture does.
func TestMemoryReleaseWaitsForWorkBeforeCapture(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		s, proceed := r.stream(), make(chan struct{})
		release := sync.OnceFunc(func() { close(proceed) })
		defer release()
		r.ok(s.Host(func() { <-proceed }))
		r.ok(s.Fill(b.Memory(), 1))
		r.ok(s.BeginCapture())
		soon, cancel := context.WithTimeout(r.ctx, 20*time.Millisecond)
		defer cancel()
		r.wantErr(p.Trim(soon, 0), context.DeadlineExceeded)
		release()
		graph, err := s.EndCapture()
		r.ok(err)
		r.ok(graph.Close())
		r.ok(s.Synchronize(r.ctx))
		r.ok(p.Trim(r.ctx, 0))
	})
}

func TestConcurrentCapturesAndFrees(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		const captures, each = 200, 100
		p := r.pool()
		capturing, other := r.DefaultStream(), r.stream()
		var used []symmem.Buffer
		for range each {
			used = append(used, r.alloc(p, 512))
		}

		work := make(chan error, 2)
		done := make(chan struct{})
		go func() {
			defer close(done)
			work <- captureOften(capturing, used, captures)
		}()
		go func() { work <- freeForeignUses(p, other, done) }()
		for range 2 {
			select {
			case err := <-work:
				r.ok(err)
			case <-time.After(time.Minute):
				// After a deadlock the world cannot be closed, so the process must exit here.
				stacks := make([]byte, 1<<16)
				panic(fmt.Sprintf("captures and frees wait for each other:\n%s",
					stacks[:runtime.Stack(stacks, true)]))
			}
		}
	})
}

func captureOften(s *symmem.Stream, used []symmem.Buffer, times int) error {
	for range times {
		if err := s.BeginCapture(); err != nil {
			return err
		}

		var errs []error
		for _, b := range used {
			errs = append(errs, s.Fill(b.Memory(), 1))
		}

		g, err := s.EndCapture()
		if err := errors.Join(append(errs, err)...); err != nil {
			return err
		}

		if err := g.Close(); err != nil {
			return err
		}
	}

	return nil
}

// freeForeignUses frees buffers that another stream has used, until stop is closed.
func freeForeignUses(p *symmem.Pool, user *symmem.Stream, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}

		b, err := p.Alloc(512)
		if err != nil {
			return err
		}

		if err := errors.Join(b.UseOn(user), b.Free()); err != nil {
			return err
		}
	}
}

func TestUseBeforeCaptureKeepsBlock(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p, err := r.NewPool(symmem.PoolOptions{
			Domain: r.World(), Capacity: 2 << 20, FirstSegment: 2 << 20,
		})
		r.ok(err)
		other, err := r.NewStream()
		r.ok(err)
		b, err := p.Alloc(2 << 20)
		r.ok(err)
		r.ok(b.UseOn(other))
		r.ok(other.BeginCapture())
		r.ok(b.Free())
		_, err = p.Alloc(2 << 20)
		r.ok(err)
		g, err := other.EndCapture()
		r.ok(err)
		r.ok(g.Launch(other))
		r.ok(g.Close())
	})
}

package symmem_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"symmem"
)

func TestPoolAtReusedAddressesRegisters(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		for range 4 {
			p := r.pool()
			b := r.window(p, mib)
			if !r.World().IsSymmetric(b.Memory()) {
				r.failf("IsSymmetric = false for the registered buffer at %#x", b.Address())
			}

			r.checkSum(r.World(), b)
			r.ok(b.Free())
			r.ok(p.Close())
		}

		if paths := r.World().Stats().Paths; paths["window"] != 4 || paths["plain"] != 0 {
			r.failf("Paths = %v, want 4 calls on the window path", paths)
		}
	})
}

func TestClosedPoolMemoryIsRejected(t *testing.T) {
	for name, domain := range map[string]bool{"with windows": true, "without windows": false} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				o := symmem.PoolOptions{}
				if domain {
					o.Domain = r.World()
				}

				p := r.poolWith(o)
				b := r.alloc(p, mib)
				r.checkSum(r.World(), b)
				r.closePool(p)
				s := r.DefaultStream()
				r.wantErr(r.sum(r.World(), b), symmem.ErrClosed)
				r.wantErr(s.Fill(b.Memory(), 1), symmem.ErrClosed)
				r.wantErr(s.Copy(b.Memory(), b.Memory()), symmem.ErrClosed)
				r.wantErr(b.UseOn(s), symmem.ErrClosed)
			})
		})
	}
}

func TestGraphOverClosedPoolIsRejected(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		m := r.window(p, mib).Memory()
		s, err := r.NewStream()
		r.ok(err)
		r.ok(s.BeginCapture())
		r.ok(r.World().AllReduce(r.ctx, m, m, 100, symmem.Float32, symmem.Sum, s))
		g, err := s.EndCapture()
		r.ok(err)
		r.closePool(p)
		r.wantErr(g.Launch(s), symmem.ErrClosed)
		r.ok(g.Close())
	})
}

func TestPoolCloseUnmapsAfterWork(t *testing.T) {
	for name, end := range map[string]func(r *rank, p *symmem.Pool, b symmem.Buffer) error{
		"Close": func(r *rank, p *symmem.Pool, b symmem.Buffer) error {
			r.ok(b.Free())
			return p.Close()
		},
		"Trim": func(r *rank, p *symmem.Pool, b symmem.Buffer) error {
			r.ok(b.Free())
			return p.Trim(r.ctx, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 1, symmem.Options{}, func(r *rank) {
				p := r.pool()
				b := r.alloc(p, 4*mib)
				s := r.DefaultStream()
				release, done := make(chan struct{}), make(chan error, 1)
				r.ok(s.Host(func() { <-release }))
				for range 100 {
					r.ok(s.Fill(b.Memory(), 3))
				}

				go func() {
					close(release)
					done <- end(r, p, b)
				}()
				r.ok(<-done)
				r.ok(s.Synchronize(r.ctx))
			})
		})
	}
}

// TestPoolCloseUnmapsAfterWorkOfClosedStream trims or closes a pool while ForgetStream waits for
// the work of a stream that uses the pool.
func TestPoolCloseUnmapsAfterWorkOfClosedStream(t *testing.T) {
	for name, end := range map[string]func(*rank, *symmem.Pool) error{
		"Close": func(_ *rank, p *symmem.Pool) error { return p.Close() },
		"Trim":  func(r *rank, p *symmem.Pool) error { return p.Trim(r.ctx, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 1, symmem.Options{}, func(r *rank) {
				p := r.pool()
				s, err := r.Interop().AdoptStream(r.stream().Handle())
				r.ok(err)
				b := r.alloc(p, 4*mib)
				release := r.hold(s)
				r.ok(s.Fill(b.Memory(), 3))
				r.ok(b.Free())
				forgotten, done := make(chan struct{}), make(chan error, 1)
				go func() {
					defer close(forgotten)
					r.Interop().ForgetStream(s)
				}()
				pause()
				go func() { done <- end(r, p) }()
				select {
				case err := <-done:
					t.Errorf("%s did not wait for the work: %v", name, err)
				case <-time.After(50 * time.Millisecond):
				}

				release()
				<-forgotten
				r.ok(<-done)
			})
		})
	}
}

// TestTrimWaitsForConcurrentWork queues work on the default stream during Trim, after Trim has
// waited for that stream and while it waits for another one. The buffer is freed, so Trim unmaps
// its segment.
func TestTrimWaitsForConcurrentWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, 4*mib)
		release := r.hold(r.stream())
		trimmed := make(chan error, 1)
		go func() { trimmed <- p.Trim(r.ctx, 0) }()
		pause()
		releaseDefault := r.hold(r.DefaultStream())
		r.ok(r.DefaultStream().Fill(b.Memory(), 3))
		r.ok(b.Free())
		release()
		select {
		case err := <-trimmed:
			t.Errorf("Trim did not wait for the queued work: %v", err)
		case <-time.After(50 * time.Millisecond):
		}

		releaseDefault()
		r.synchronize()
		r.ok(<-trimmed)
		if segments := p.Stats().Segments; segments != 0 {
			r.failf("%d segments are left, want 0", segments)
		}
	})
}

// TestTrimFinishesEarlierTrim cancels a Trim that has already removed a segment from the pool's
// free memory and now waits for work on the segment. That work was queued, and its buffer freed,
// after the Trim had waited for the streams the first time. The next Trim must unmap the segment.
func TestTrimFinishesEarlierTrim(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		var queue func()
		symmem.HookControl(r.Runtime, func() {
			if queue != nil {
				queue()
				queue = nil
			}
		})
		p := r.poolWith(symmem.PoolOptions{Domain: r.split(r.World(), 0), FirstSegment: 4 * mib})
		b := r.alloc(p, 4*mib)
		release := func() {}
		queue = func() {
			release = r.hold(r.DefaultStream())
			r.ok(r.DefaultStream().Fill(b.Memory(), 3))
			r.ok(b.Free())
		}
		ctx, cancel := context.WithCancel(r.ctx)
		trimmed := make(chan error, 1)
		go func() { trimmed <- p.Trim(ctx, 0) }()
		for symmem.Releasing(p) == 0 {
			runtime.Gosched()
		}

		cancel()
		r.wantErr(<-trimmed, context.Canceled)
		release()
		r.synchronize()
		r.ok(p.Trim(r.ctx, 0))
		if got := symmem.Releasing(p); got != 0 {
			r.failf("%d segments of the canceled Trim are mapped; want 0", got)
		}
	})
}

func TestPoolStaysOpenDuringWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, mib)
		s := r.DefaultStream()
		gate := make(chan struct{})
		r.ok(s.Host(func() { <-gate }))
		r.ok(s.Fill(b.Memory(), 3))
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		r.wantErr(p.Trim(ctx, 0), context.Canceled)
		close(gate)
		r.ok(s.Synchronize(r.ctx))
		r.ok(p.Trim(r.ctx, 0))
	})
}

// TestClosingPoolRejectsWork queues work while Close waits. The work must be rejected, because it
// would use memory and windows that Close releases.
func TestClosingPoolRejectsWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: 20 * time.Second}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		s := r.stream()
		r.ok(s.BeginCapture())
		r.ok(s.Fill(b.Memory(), 3))
		g, err := s.EndCapture()
		r.ok(err)
		r.ok(r.sum(r.World(), b))
		release := r.hold(s)
		closed := make(chan error)
		go func() { closed <- p.Close() }()
		for begin := time.Now(); !errors.Is(s.Fill(b.Memory(), 3), symmem.ErrClosed); {
			if time.Since(begin) > 10*time.Second {
				release()
				r.failf("Fill succeeded while Close waits for earlier work, want ErrClosed")
			}
		}

		r.wantErr(r.sum(r.World(), b), symmem.ErrClosed)
		r.wantErr(g.Launch(r.DefaultStream()), symmem.ErrClosed)
		r.ok(b.Free())
		release()
		r.ok(<-closed)
		r.ok(g.Close())
	})
}

// TestPoolCloseWaitsForCalls closes a pool during calls that have checked the memory of the pool
// and are about to use it.
func TestPoolCloseWaitsForCalls(t *testing.T) {
	for name, call := range map[string]func(*rank, *symmem.Pool, symmem.Buffer, func()) error{
		"a fill": func(r *rank, _ *symmem.Pool, b symmem.Buffer, hold func()) error {
			s := r.stream()
			symmem.HoldFill(s, hold)
			return s.Fill(b.Memory(), 3)
		},
		"a registration": func(r *rank, p *symmem.Pool, _ symmem.Buffer, hold func()) error {
			symmem.HoldRegister(r.Runtime, hold)
			return p.Register(r.ctx, r.split(r.World(), 0))
		},
		"the end of a scope": func(r *rank, p *symmem.Pool, _ symmem.Buffer, hold func()) error {
			symmem.HoldRegister(r.Runtime, hold)
			scope := p.Begin(r.split(r.World(), 0))
			return scope.End(r.ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 1, symmem.Options{}, func(r *rank) {
				p, closed := r.pool(), make(chan error, 1)
				b := r.alloc(p, mib)
				r.ok(call(r, p, b, func() {
					go func() { closed <- p.Close() }()
					select {
					case err := <-closed:
						r.failf("Close did not wait for the call: %v", err)
					case <-time.After(50 * time.Millisecond):
					}
				}))
				r.ok(<-closed)
				r.ok(b.Free())
			})
		})
	}
}

// TestPoolCloseWaitsForCallThatRegisters makes a collective on memory of two pools, and closes the
// second pool while the collective registers the first one.
func TestPoolCloseWaitsForCallThatRegisters(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		send, recv := r.alloc(r.pool(), mib), r.alloc(r.pool(), mib)
		other, closed := r.stream(), make(chan error, 1)
		var first sync.Once
		symmem.HoldRegister(r.Runtime, func() {
			first.Do(func() {
				go func() { closed <- recv.Pool().Close() }()
				for recv.UseOn(other) == nil { // ends when the pool rejects calls
					runtime.Gosched()
				}
			})
		})
		g := r.split(r.World(), 0)
		r.fill(send, 3)
		r.ok(g.AllReduce(r.ctx, send.Memory(), recv.Memory(), 1024, symmem.Float32, symmem.Sum, nil))
		r.ok(<-closed)
		r.synchronize()
		r.ok(recv.Free())
	})
}

// TestPoolCloseTimesOut closes a pool while its work cannot complete, and again after the work has
// completed.
func TestPoolCloseTimesOut(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		p := r.pool()
		s := r.stream()
		release := r.hold(s)
		closed := make(chan error, 1)
		go func() { closed <- p.Close() }()
		select {
		case err := <-closed:
			r.wantTimeout(err)
		case <-time.After(20 * time.Second):
			release()
			r.failf("Close has not timed out after 20s")
		}

		b := r.alloc(p, mib)
		r.ok(r.DefaultStream().Fill(b.Memory(), 3))
		r.ok(b.Free())
		release()
		r.ok(s.Synchronize(r.ctx))
		r.ok(p.Close())
	})
}

// abortable selects a path whose kernels release their memory when they are aborted. NCCL's window
// kernels keep it until the process exits.
var abortable = symmem.Options{Path: symmem.PathPlain}

func TestViewOfFreedAndClosedMemory(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		freed, kept := r.alloc(p, mib), r.alloc(p, mib)
		r.ok(freed.Free())
		_, err := symmem.View[float32](freed)
		r.wantErr(err, symmem.ErrFreed)
		r.closePool(p)
		_, err = symmem.View[float32](kept)
		r.wantErr(err, symmem.ErrClosed)
	})
}

// TestRuntimeCloseWaitsForPoolClose closes a Runtime while Close of a pool unmaps a segment on
// another goroutine.
func TestRuntimeCloseWaitsForPoolClose(t *testing.T) {
	rt := openRanks(t, 1, symmem.Options{})[0]
	closed := make(chan error, 1)
	symmem.HoldEnds(rt, func() error {
		go func() { closed <- rt.Close() }()
		select {
		case err := <-closed:
			t.Error("Runtime.Close has closed the device before a segment was unmapped")
			closed <- err
		case <-time.After(100 * time.Millisecond):
		}

		return nil
	})
	r := &rank{Runtime: rt, t: t, ctx: t.Context()}
	p := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib})
	r.ok(r.alloc(p, 4*mib).Free())
	r.ok(p.Close())
	r.ok(<-closed)
}

// TestPoolIsUnlockedWhileMemoryIsReleased uses a pool while the backend unmaps its segments or
// deregisters its windows, which may wait for the GPU or for other ranks.
func TestPoolIsUnlockedWhileMemoryIsReleased(t *testing.T) {
	for name, end := range map[string]func(*rank, *symmem.Group, *symmem.Pool, symmem.Buffer) error{
		"Pool.Close": func(r *rank, _ *symmem.Group, p *symmem.Pool, b symmem.Buffer) error {
			r.ok(b.Free())
			return p.Close()
		},
		"Free after Close": func(_ *rank, _ *symmem.Group, p *symmem.Pool, b symmem.Buffer) error {
			return errors.Join(p.Close(), b.Free())
		},
		"Trim": func(r *rank, _ *symmem.Group, p *symmem.Pool, b symmem.Buffer) error {
			r.ok(b.Free())
			return p.Trim(r.ctx, 0)
		},
		"Group.Close": func(_ *rank, g *symmem.Group, _ *symmem.Pool, _ symmem.Buffer) error {
			return g.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 1, symmem.Options{}, func(r *rank) {
				var p *symmem.Pool
				var count atomic.Int32
				symmem.HoldEnds(r.Runtime, func() error {
					count.Add(1)
					checkUnlocked(t, p)
					return nil
				})
				g := r.split(r.World(), 0)
				p = r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 4 * mib})
				b := r.alloc(p, 4*mib)
				r.ok(p.Register(r.ctx, g))
				r.ok(end(r, g, p, b))
				if count.Load() == 0 {
					r.failf("no segment or window has ended")
				}

				_ = b.Free() // fails if it was freed
			})
		})
	}
}

// checkUnlocked checks that a pool can be used at once.
func checkUnlocked(t *testing.T, p *symmem.Pool) {
	t.Helper()
	used := make(chan struct{})
	go func() {
		p.Stats()
		close(used)
	}()
	select {
	case <-used:
	case <-time.After(10 * time.Second):
		t.Error("the pool is locked")
	}
}

// TestPoolIsUnlockedWhileCommunicatorWaits registers a pool with an adopted communicator while a
// window of another pool is deregistered there. Register waits; other uses of the pool do not.
func TestPoolIsUnlockedWhileCommunicatorWaits(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		var a *symmem.AdoptedCommunicator
		p, other := r.pool(), r.pool()
		var once sync.Once
		registered := make(chan error, 1)
		symmem.HoldEnds(r.Runtime, func() error {
			once.Do(func() {
				go func() { registered <- a.Register(r.ctx, other) }()
				select {
				case err := <-registered:
					t.Error("Register has not waited")
					registered <- err
				case <-time.After(50 * time.Millisecond):
				}

				checkUnlocked(t, other)
			})
			return nil
		})
		var err error
		a, err = r.Interop().AdoptCommunicator(1, "theirs", nil)
		r.ok(err)
		for _, each := range []*symmem.Pool{p, other} {
			r.ok(r.alloc(each, mib).Free())
		}

		r.ok(a.Register(r.ctx, p))
		r.ok(p.Close())
		r.ok(<-registered)
		if n := a.Windows(); n != 1 {
			r.failf("the communicator has %d windows, want 1", n)
		}
	})
}

package symmem_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

// TestCloseReportsFaultOnce closes a Runtime while three of its streams have collectives of a
// group that the other rank has aborted. No call has returned the fault yet, so Close must return
// it, but only once.
func TestCloseReportsFaultOnce(t *testing.T) {
	runtimes := openRanks(t, 2, symmem.Options{Timeout: 20 * time.Second})
	launched, closed := make(chan struct{}), make(chan error, 1)
	eachRank(runtimes, func(rt *symmem.Runtime) {
		r := &rank{Runtime: rt, t: t, ctx: t.Context()}
		defer r.Close()
		defer symmem.FreeLive(rt)
		b := r.window(r.pool(), mib)
		r.checkSum(r.World(), b) // NCCL's first call waits for all ranks
		if r.Rank() == 1 {
			<-launched
			r.World().Abort()
			<-r.World().Ended() // after Close, this rank could not report the cause
			return
		}
		defer func() {
			symmem.FreeLive(rt)
			closed <- r.Close()
		}()
		defer close(launched)
		begin := make(chan struct{})
		defer close(begin)
		for range 3 {
			s, err := r.NewStream()
			r.ok(err)
			// The host function delays the collective, so the call itself launches nothing.
			r.ok(s.Host(func() { <-begin }))
			m := b.Memory()
			r.ok(r.World().AllReduce(r.ctx, m, m, 100, symmem.Float32, symmem.Sum, s))
		}
	})
	err := <-closed
	if !errors.Is(err, symmem.ErrAborted) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want ErrAborted once", err)
	}
}

// TestCloseOmitsReturnedFault checks that Close does not return a fault that a call has returned.
func TestCloseOmitsReturnedFault(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		b := r.window(r.pool(), 4096)
		m := b.Memory()
		g.Abort()
		err := g.AllReduce(r.ctx, m, m, 100, symmem.Float32, symmem.Sum, nil)
		r.wantErr(err, symmem.ErrAborted)
		symmem.FreeLive(r.Runtime)
		r.ok(r.Close())
	})
}

// TestCloseEndsPendingJoin closes a Runtime during a Join, which must return ErrClosed.
func TestCloseEndsPendingJoin(t *testing.T) {
	waiting := make(chan struct{})
	var once sync.Once
	runtimes := openRanks(t, 2, symmem.Options{
		Timeout: time.Minute, WarnAfter: 20 * time.Millisecond,
		OnLate: func(symmem.LateWarning) { once.Do(func() { close(waiting) }) },
	})
	begin := time.Now()
	joined := make(chan error, 1)
	go func() {
		_, err := runtimes[0].Join(t.Context(), "alone", []int{0, 1})
		joined <- err
	}()
	<-waiting
	eachRank(runtimes, func(rt *symmem.Runtime) {
		if err := rt.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	if err := <-joined; !errors.Is(err, symmem.ErrClosed) {
		t.Errorf("Join: got %v, want ErrClosed", err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("Join and Close took %v, want at most 20s", took)
	}
}

// TestJoinNamesClosedRank closes rank 0 during its Join, while rank 1 waits in Join and before
// rank 2 connects. The errors of ranks 1 and 2 must name rank 0.
func TestJoinNamesClosedRank(t *testing.T) {
	runtimes := openRanks(t, 3, symmem.Options{Timeout: time.Minute})
	connected, failed := make(chan struct{}), make(chan struct{})
	symmem.HoldConnect(runtimes[0], func() { close(connected) })
	symmem.HoldConnect(runtimes[2], func() { <-failed })
	errs := make([]error, len(runtimes))
	eachRank(runtimes, func(rt *symmem.Runtime) {
		var closing sync.WaitGroup
		defer closing.Wait()
		if rt.Rank() == 0 {
			closing.Go(func() {
				<-connected
				if err := rt.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		_, errs[rt.Rank()] = rt.Join(t.Context(), "three", []int{0, 1, 2})
		if rt.Rank() == 1 {
			close(failed)
		}
		if err := rt.Close(); err != nil {
			t.Errorf("rank %d: Close: %v", rt.Rank(), err)
		}
	})
	if !errors.Is(errs[0], symmem.ErrClosed) {
		t.Errorf("rank 0: got %v, want ErrClosed", errs[0])
	}
	for rank, err := range errs[1:] {
		var deadlock *symmem.DeadlockError
		if !errors.As(err, &deadlock) || len(deadlock.Activity) != 1 || deadlock.Activity[0] == "" {
			t.Errorf("rank %d: got %v, want a DeadlockError that names only rank 0", rank+1, err)
		}
	}
}

// TestCloseAbortsAllStreamsAtOnce checks that the timeouts of many busy streams do not add up.
func TestCloseAbortsAllStreamsAtOnce(t *testing.T) {
	const timeout, streams = 500 * time.Millisecond, 24
	runRanks(t, 1, symmem.Options{Timeout: timeout}, func(r *rank) {
		for range streams {
			r.hold(r.stream())
		}
		const limit = (streams - 1) * 2 * timeout // less than twice the timeout for each stream
		begin := time.Now()
		r.wantTimeout(r.Close())
		if took := time.Since(begin); took > limit {
			r.failf("Close took %v, want at most %v", took, limit)
		}
	})
}

func TestRuntimeForgetsClosedPoolsAndGroups(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		before := r.Stats()
		for range 3 {
			g, err := r.World().Split(r.ctx, 0, 0)
			r.ok(err)
			p := r.poolWith(symmem.PoolOptions{Domain: g, FirstSegment: 4 * mib})
			r.window(p, mib)
			r.closePool(p)
			r.ok(g.Close())
		}
		if after := r.Stats(); len(after.Pools) != len(before.Pools) ||
			len(after.Groups) != len(before.Groups) {
			r.failf("%d pools and %d groups are left, want %d and %d",
				len(after.Pools), len(after.Groups), len(before.Pools), len(before.Groups))
		}
	})
}

// beginClose starts Close on another goroutine and waits until it has begun.
func beginClose(rt *symmem.Runtime) (closed chan error) {
	closed = make(chan error, 1)
	go func() { closed <- rt.Close() }()
	for {
		if _, err := rt.NewEvent(); err != nil {
			pause()
			return closed
		}
	}
}

// pause gives other goroutines time to begin waiting, or to make the mistake that a test looks for.
func pause() { <-time.After(50 * time.Millisecond) }

func TestCloseDuringNewPool(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		var closed chan error
		symmem.HoldArena(r.Runtime, func() { closed = beginClose(r.Runtime) })
		p, err := r.NewPool(symmem.PoolOptions{})
		r.ok(err)
		r.ok(<-closed)
		_, err = p.Alloc(mib)
		r.wantErr(err, symmem.ErrClosed)
	})
}

// TestCloseDuringJoinClosesGroup closes a Runtime inside a Join, so that Close times out.
func TestCloseDuringJoinClosesGroup(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		symmem.HoldConnect(r.Runtime, func() { r.ok(r.Close()) })
		_, err := r.Join(r.ctx, "late", []int{0})
		r.wantErr(err, symmem.ErrClosed)
	})
}

// TestCloseKeepsMemoryOfUnfinishedWork checks that memory stays mapped until the work that uses it
// has completed. TestMain checks that the memory is released afterwards.
func TestCloseKeepsMemoryOfUnfinishedWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		r.requireAddressable() // GPU memory would remain allocated in this process
		b, s := r.alloc(r.pool(), mib), r.stream()
		r.hold(s)
		r.ok(s.Fill(b.Memory(), 1))
		r.ok(b.Free())
		r.wantTimeout(r.Close())
	})
}

package symmem_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

// TestCloseReportsFaultOnce closes the Runtime of rank 0 while three of its streams have
// collectives of the world, which rank 1 aborts. No call has returned the fault yet, so Close must
// return it, but only once.
func TestCloseReportsFaultOnce(t *testing.T) {
	const abortingRank, streams, count = 1, 3, 100
	runtimes := openRanks(t, 2, symmem.Options{Timeout: 20 * time.Second})
	launched := make(chan struct{}) // closed when rank 0 has queued its collectives
	closed := make(chan error, 1)   // the result of rank 0's Close
	eachRank(runtimes, func(rt *symmem.Runtime) {
		r := &rank{Runtime: rt, t: t, ctx: t.Context()}
		defer r.Close() // does nothing if rank 0 has closed already
		defer symmem.FreeLive(rt)
		b := r.window(r.pool(), mib)
		r.checkSum(r.World(), b) // NCCL's first call waits for all ranks
		if r.Rank() == abortingRank {
			<-launched
			r.World().Abort()
			<-r.World().Ended() // after Close, this rank could not report the cause
			return
		}

		// The deferred calls also run after a failure. Their order is: begin, launched, Close.
		defer func() {
			symmem.FreeLive(rt)
			closed <- r.Close()
		}()
		defer close(launched)
		begin := make(chan struct{}) // when it is closed, the streams begin their collectives
		defer close(begin)
		for range streams {
			s, err := r.NewStream()
			r.ok(err)
			// The host function delays the collective, so the call itself launches nothing.
			r.ok(s.Host(func() { <-begin }))
			m := b.Memory()
			r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, s))
		}
	})
	err := <-closed
	isJoined := err != nil && strings.Contains(err.Error(), "\n") // one line for each joined error
	if !errors.Is(err, symmem.ErrAborted) || isJoined {
		t.Errorf("got %v, want ErrAborted once", err)
	}
}

// TestCloseOmitsReturnedFault aborts a group and calls it, which returns the fault. Close must not
// return the same fault again.
func TestCloseOmitsReturnedFault(t *testing.T) {
	const count = 100
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		const color = 0
		g := r.split(r.World(), color)
		b := r.window(r.pool(), 4096)
		m := b.Memory()
		g.Abort()
		err := g.AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
		r.wantErr(err, symmem.ErrAborted)
		symmem.FreeLive(r.Runtime)
		r.ok(r.Close())
	})
}

// TestCloseEndsPendingJoin closes both Runtimes while rank 0 waits in a Join for rank 1, which
// never calls it. Join must return ErrClosed long before its timeout.
func TestCloseEndsPendingJoin(t *testing.T) {
	const timeout, limit = time.Minute, 20 * time.Second
	waiting := make(chan struct{}) // closed by the first warning that rank 1 is late
	var once sync.Once
	runtimes := openRanks(t, 2, symmem.Options{
		Timeout: timeout, WarnAfter: 20 * time.Millisecond,
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

	if took := time.Since(begin); took > limit {
		t.Errorf("Join and Close took %v, want at most %v", took, limit)
	}
}

// TestJoinNamesClosedRank closes the Runtime of rank 0 during its Join. At that time, rank 1 waits
// in Join, and rank 2 has not connected yet. The errors of ranks 1 and 2 must name rank 0.
func TestJoinNamesClosedRank(t *testing.T) {
	const closedRank, waitingRank, lateRank = 0, 1, 2
	runtimes := openRanks(t, 3, symmem.Options{Timeout: time.Minute})
	connected := make(chan struct{}) // closed when rank 0 has connected
	failed := make(chan struct{})    // closed when rank 1's Join has failed
	symmem.HoldConnect(runtimes[closedRank], func() { close(connected) })
	symmem.HoldConnect(runtimes[lateRank], func() { <-failed })
	errs := make([]error, len(runtimes)) // of Join, by rank
	eachRank(runtimes, func(rt *symmem.Runtime) {
		var closing sync.WaitGroup
		defer closing.Wait()
		if rt.Rank() == closedRank {
			closing.Go(func() {
				<-connected
				if err := rt.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}

		_, errs[rt.Rank()] = rt.Join(t.Context(), "three", []int{0, 1, 2})
		if rt.Rank() == waitingRank {
			close(failed)
		}

		if err := rt.Close(); err != nil {
			t.Errorf("rank %d: Close: %v", rt.Rank(), err)
		}
	})
	if err := errs[closedRank]; !errors.Is(err, symmem.ErrClosed) {
		t.Errorf("rank %d: got %v, want ErrClosed", closedRank, err)
	}

	for _, number := range []int{waitingRank, lateRank} {
		var deadlock *symmem.DeadlockError
		if !errors.As(errs[number], &deadlock) {
			t.Errorf("rank %d: got %v, want a DeadlockError", number, errs[number])
			continue
		}

		if len(deadlock.Activity) != 1 || deadlock.Activity[closedRank] == "" {
			t.Errorf("rank %d: got the activities %v, want only one of rank %d", number,
				deadlock.Activity, closedRank)
		}
	}
}

// TestCloseAbortsAllStreamsAtOnce checks that the timeouts of many busy streams do not add up.
func TestCloseAbortsAllStreamsAtOnce(t *testing.T) {
	const timeout, streams = 500 * time.Millisecond, 24
	runRanks(t, 1, symmem.Options{Timeout: timeout}, func(r *rank) {
		for range streams {
			r.hold(r.stream()) // keeps the stream busy until the end of the test
		}

		// In turn, the streams would take twice the timeout each, which is more than the limit.
		const limit = (streams - 1) * 2 * timeout
		begin := time.Now()
		err := r.Close()
		r.wantTimeout(err)
		if took := time.Since(begin); took > limit {
			r.failf("Close took %v, want at most %v", took, limit)
		}
	})
}

// TestRuntimeForgetsClosedPoolsAndGroups checks that closed pools and groups leave the statistics,
// so that a Runtime that creates many of them does not grow.
func TestRuntimeForgetsClosedPoolsAndGroups(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		const rounds, color = 3, 0
		before := r.Stats()
		for range rounds {
			g := r.split(r.World(), color)
			p := r.poolWith(symmem.PoolOptions{Domain: g, FirstSegment: 4 * mib})
			r.window(p, mib)
			r.closePool(p)
			r.ok(g.Close())
		}

		after := r.Stats()
		if len(after.Pools) != len(before.Pools) || len(after.Groups) != len(before.Groups) {
			r.failf("%d pools and %d groups are left, want %d and %d as before",
				len(after.Pools), len(after.Groups), len(before.Pools), len(before.Groups))
		}
	})
}

// beginClose starts Close on another goroutine and waits until the Runtime rejects new calls. The
// result of Close is sent to closed.
func beginClose(rt *symmem.Runtime) (closed chan error) {
	closed = make(chan error, 1)
	go func() { closed <- rt.Close() }()
	for {
		if _, err := rt.NewEvent(); err != nil { // Close has begun
			pause()
			return closed
		}
	}
}

// pause gives other goroutines time to begin waiting, or to make the mistake that a test looks for.
func pause() { <-time.After(50 * time.Millisecond) }

// TestCloseDuringNewPool begins Close when NewPool has reserved addresses. NewPool must succeed,
// and Close must wait for it and close the new pool.
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

// TestCloseDuringJoinClosesGroup calls Close inside a Join, so that Close waits for the Join until
// the timeout. Afterwards, Join must close the new group and return ErrClosed.
func TestCloseDuringJoinClosesGroup(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		symmem.HoldConnect(r.Runtime, func() { r.ok(r.Close()) }) // called in Join
		_, err := r.Join(r.ctx, "late", []int{r.Rank()})
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
		err := r.Close() // the stream is still busy
		r.wantTimeout(err)
	})
}

package symmem_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

// Collectives on three streams of rank 0 fail when rank 1 aborts the world. No call has returned
// this fault, so Close returns it, but only once.
func TestCloseReportsFaultOnce(t *testing.T) {
	const abortingRank, streams, count = 1, 3, 100 // arbitrary count
	runtimes := openRanks(t, 2, symmem.Options{Timeout: 20 * time.Second})
	launched := make(chan struct{}) // closed when rank 0 has queued its collectives
	closed := make(chan error, 1)   // from rank 0
	eachRank(runtimes, func(rt *symmem.Runtime) {
		r := &rank{Runtime: rt, t: t, ctx: t.Context()}
		defer r.Close() // does nothing if rank 0 has closed already
		defer symmem.FreeLive(rt)
		b := r.window(r.pool(), mib)
		r.checkSum(r.World(), b) // NCCL's first call waits for all ranks
		if r.Rank() == abortingRank {
			<-launched
			r.World().Abort()
			<-r.World().Ended() // a closed rank could not report the cause
			return
		}

		// The deferred calls also run after a failure, in the order begin, launched, Close.
		defer func() {
			symmem.FreeLive(rt)
			closed <- r.Close()
		}()
		defer close(launched)
		begin := make(chan struct{}) // lets the collectives begin
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
	isJoined := err != nil && strings.Contains(err.Error(), "\n") // one line per error
	if !errors.Is(err, symmem.ErrAborted) || isJoined {
		t.Errorf("got %v, want ErrAborted once", err)
	}
}

// Close does not return a fault that a call has returned.
func TestCloseOmitsReturnedFault(t *testing.T) {
	const count = 100 // arbitrary
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

// Rank 0 waits in Join for rank 1, which never joins. Close ends the Join long before its timeout.
func TestCloseEndsPendingJoin(t *testing.T) {
	const timeout, limit = time.Minute, 20 * time.Second
	warned := make(chan struct{}) // rank 1 is late
	var once sync.Once
	runtimes := openRanks(t, 2, symmem.Options{
		Timeout: timeout, WarnAfter: 20 * time.Millisecond,
		OnLate: func(symmem.LateWarning) { once.Do(func() { close(warned) }) },
	})
	begin := time.Now()
	joined := make(chan error, 1)
	go func() {
		_, err := runtimes[0].Join(t.Context(), "alone", []int{0, 1})
		joined <- err
	}()
	<-warned
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

// Rank 0 closes its Runtime during Join. A rank that already waits in Join and a rank that connects
// later both get errors that name rank 0.
func TestJoinNamesClosedRank(t *testing.T) {
	const closedRank, waitingRank, lateRank = 0, 1, 2
	runtimes := openRanks(t, 3, symmem.Options{Timeout: time.Minute})
	closedRankConnected := make(chan struct{})
	waitingRankFailed := make(chan struct{})
	symmem.HoldConnect(runtimes[closedRank], func() { close(closedRankConnected) })
	symmem.HoldConnect(runtimes[lateRank], func() { <-waitingRankFailed })
	joinErrs := make([]error, len(runtimes)) // by rank
	eachRank(runtimes, func(rt *symmem.Runtime) {
		var closing sync.WaitGroup
		defer closing.Wait()
		if rt.Rank() == closedRank {
			closing.Go(func() {
				<-closedRankConnected
				if err := rt.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}

		_, joinErrs[rt.Rank()] = rt.Join(t.Context(), "three", []int{0, 1, 2})
		if rt.Rank() == waitingRank {
			close(waitingRankFailed)
		}

		if err := rt.Close(); err != nil {
			t.Errorf("rank %d: Close: %v", rt.Rank(), err)
		}
	})
	if err := joinErrs[closedRank]; !errors.Is(err, symmem.ErrClosed) {
		t.Errorf("rank %d: got %v, want ErrClosed", closedRank, err)
	}

	for _, number := range []int{waitingRank, lateRank} {
		var deadlock *symmem.DeadlockError
		if !errors.As(joinErrs[number], &deadlock) {
			t.Errorf("rank %d: got %v, want a DeadlockError", number, joinErrs[number])
			continue
		}

		if len(deadlock.Activity) != 1 || deadlock.Activity[closedRank] == "" {
			t.Errorf("rank %d: got the activities %v, want only one of rank %d", number,
				deadlock.Activity, closedRank)
		}
	}
}

func TestCloseAbortsAllStreamsAtOnce(t *testing.T) {
	const timeout, streams = 500 * time.Millisecond, 24
	runRanks(t, 1, symmem.Options{Timeout: timeout}, func(r *rank) {
		for range streams {
			r.hold(r.stream()) // until the end of the test
		}

		// One after the other, each stream would take twice the timeout.
		const limit = (streams - 1) * 2 * timeout
		begin := time.Now()
		err := r.Close()
		r.wantTimeout(err)
		if took := time.Since(begin); took > limit {
			r.failf("Close took %v, want at most %v", took, limit)
		}
	})
}

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

// beginClose starts Close and returns as soon as the Runtime rejects new calls.
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

// pause gives other goroutines time to block or, if symmem has an error, to continue.
func pause() { <-time.After(50 * time.Millisecond) }

// Close waits for a NewPool that has reserved addresses, and closes the new pool.
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

// A Close inside Join waits for the Join until the timeout. Join then closes the new group.
func TestCloseDuringJoinClosesGroup(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		symmem.HoldConnect(r.Runtime, func() { r.ok(r.Close()) })
		_, err := r.Join(r.ctx, "late", []int{r.Rank()})
		r.wantErr(err, symmem.ErrClosed)
	})
}

// Memory stays mapped until the work that uses it has completed. TestMain detects a leak.
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

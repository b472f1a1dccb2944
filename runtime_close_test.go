package symmem_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

// Rank 1 aborts the world while collectives are queued on three streams of rank 0. Close returns
// the fault as one error, because no other call has returned it.
func TestCloseReportsFaultOnce(t *testing.T) {
	const abortingRank, streams = 1, 3
	const count = 100 // arbitrary
	runtimes := openRanks(t, 2, symmem.Options{Timeout: 20 * time.Second})
	queued := make(chan struct{})   // closed when rank 0 has queued its collectives
	closeErr := make(chan error, 1) // of rank 0
	eachRank(runtimes, func(rt *symmem.Runtime) {
		r := &rank{Runtime: rt, t: t, ctx: t.Context()}
		defer r.Close() // no effect on rank 0, which closes earlier
		defer symmem.FreeLive(rt)
		b := r.window(r.pool(), mib)
		r.checkSum(r.World(), b) // NCCL's first collective needs all ranks
		if r.Rank() == abortingRank {
			<-queued
			r.World().Abort()
			<-r.World().Ended() // an earlier Close would prevent the report of the cause
			return
		}

		begin := make(chan struct{})
		defer func() { // runs even if the test fails
			close(begin)
			close(queued)
			symmem.FreeLive(rt)
			closeErr <- r.Close()
		}()
		for range streams {
			s, err := r.NewStream()
			r.ok(err)
			r.ok(s.Host(func() { <-begin })) // delays the collective until AllReduce has returned
			m := b.Memory()
			r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, s))
		}
	})
	err := <-closeErr
	hasSeveralErrors := err != nil && strings.Contains(err.Error(), "\n") // one per line
	if !errors.Is(err, symmem.ErrAborted) || hasSeveralErrors {
		t.Errorf("got %v, want ErrAborted once", err)
	}
}

// Close does not return a fault that a call has returned.
func TestCloseOmitsReturnedFault(t *testing.T) {
	const count = 100 // arbitrary
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		const color = 0
		g := r.split(r.World(), color)
		m := r.window(r.pool(), 4096).Memory()
		g.Abort()
		err := g.AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
		r.wantErr(err, symmem.ErrAborted)
		symmem.FreeLive(r.Runtime)
		r.ok(r.Close())
	})
}

// Rank 0 waits in Join for rank 1, which never joins. Close makes Join return before its timeout.
func TestCloseEndsPendingJoin(t *testing.T) {
	const timeout, limit = time.Minute, 20 * time.Second
	joinWaits := make(chan struct{}) // closed when rank 0 warns about rank 1
	var once sync.Once
	runtimes := openRanks(t, 2, symmem.Options{
		Timeout: timeout, WarnAfter: 20 * time.Millisecond,
		OnLate: func(symmem.LateWarning) { once.Do(func() { close(joinWaits) }) },
	})
	begin := time.Now()
	joinErr := make(chan error, 1)
	go func() {
		_, err := runtimes[0].Join(t.Context(), "pair", []int{0, 1})
		joinErr <- err
	}()
	<-joinWaits
	eachRank(runtimes, func(rt *symmem.Runtime) {
		if err := rt.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	if err := <-joinErr; !errors.Is(err, symmem.ErrClosed) {
		t.Errorf("Join: got %v, want ErrClosed", err)
	}

	if took := time.Since(begin); took > limit {
		t.Errorf("Join and Close took %v, want at most %v", took, limit)
	}
}

// Rank 0 closes its Runtime during Join. The rank that waits in Join and the rank that connects
// later get errors that name rank 0.
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
		err := joinErrs[number]
		var deadlock *symmem.DeadlockError
		if !errors.As(err, &deadlock) {
			t.Errorf("rank %d: got %v, want a DeadlockError", number, err)
			continue
		}

		namesOnlyClosedRank := len(deadlock.Activity) == 1 && deadlock.Activity[closedRank] != ""
		if !namesOnlyClosedRank {
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

		const maxPerStream = 2 * timeout
		const limit = (streams - 1) * maxPerStream // too short to abort one stream after another
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

// beginClose starts Close and waits until the Runtime rejects new calls.
func beginClose(rt *symmem.Runtime) (result chan error) {
	result = make(chan error, 1)
	go func() { result <- rt.Close() }()
	for {
		if _, err := rt.NewEvent(); err != nil {
			break
		}
	}

	pause()
	return result
}

// pause gives other goroutines time to block.
func pause() { <-time.After(50 * time.Millisecond) }

// Close waits for a NewPool in progress, and closes the new pool.
func TestCloseDuringNewPool(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		var closeErr chan error
		symmem.HoldArena(r.Runtime, func() { closeErr = beginClose(r.Runtime) })
		p, err := r.NewPool(symmem.PoolOptions{})
		r.ok(err)
		r.ok(<-closeErr)
		_, err = p.Alloc(mib)
		r.wantErr(err, symmem.ErrClosed)
	})
}

// Close waits for a Join in progress, at most until the timeout. Here, Join calls Close. Join then
// closes the new group.
func TestCloseDuringJoinClosesGroup(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		symmem.HoldConnect(r.Runtime, func() { r.ok(r.Close()) })
		_, err := r.Join(r.ctx, "late", []int{r.Rank()})
		r.wantErr(err, symmem.ErrClosed)
	})
}

// If Close times out, memory stays mapped until the work that uses it completes. TestMain detects
// leaked mappings.
func TestCloseKeepsMemoryOfUnfinishedWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		r.requireAddressable() // GPU memory would remain allocated in this process
		b := r.alloc(r.pool(), mib)
		s := r.stream()
		r.hold(s)
		r.ok(s.Fill(b.Memory(), 1))
		r.ok(b.Free())
		err := r.Close() // the stream is still busy
		r.wantTimeout(err)
	})
}

package symmem_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

// TestCloseReportsFaultOnce has three streams in a collective that the other rank
// does not come to, since it gives up, and closes the Runtime without asking any of them.
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
			<-r.World().Ended() // who has left tells nobody why
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
			// Behind a function of the host nothing is launched in the call itself.
			r.ok(s.Host(func() { <-begin }))
			m := b.Memory()
			r.ok(r.World().AllReduce(r.ctx, m, m, 100, symmem.Float32, symmem.Sum, s))
		}
	})
	err := <-closed
	if !errors.Is(err, symmem.ErrAborted) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want once that the group is aborted", err)
	}
}

// TestCloseOmitsReturnedFault: Synchronize would return it once more.
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

// TestCloseEndsPendingJoin that makes it, and leaves nothing of the group.
func TestCloseEndsPendingJoin(t *testing.T) {
	waits := make(chan struct{})
	var once sync.Once
	runtimes := openRanks(t, 2, symmem.Options{
		Timeout: time.Minute, WarnAfter: 20 * time.Millisecond,
		OnLate: func(symmem.LateWarning) { once.Do(func() { close(waits) }) },
	})
	began := time.Now()
	joined := make(chan error, 1)
	go func() {
		_, err := runtimes[0].Join(t.Context(), "alone", []int{0, 1})
		joined <- err
	}()
	<-waits
	eachRank(runtimes, func(rt *symmem.Runtime) {
		if err := rt.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	if err := <-joined; !errors.Is(err, symmem.ErrClosed) {
		t.Errorf("the Join got %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestJoinNamesClosedRank, also to one that comes later.
func TestJoinNamesClosedRank(t *testing.T) {
	runtimes := openRanks(t, 3, symmem.Options{Timeout: time.Minute})
	first, refused := make(chan struct{}), make(chan struct{})
	symmem.HoldConnect(runtimes[0], func() { close(first) })
	symmem.HoldConnect(runtimes[2], func() { <-refused })
	errs := make([]error, len(runtimes))
	eachRank(runtimes, func(rt *symmem.Runtime) {
		var closing sync.WaitGroup
		defer closing.Wait()
		if rt.Rank() == 0 {
			closing.Go(func() {
				<-first
				if err := rt.Close(); err != nil {
					t.Errorf("closing: %v", err)
				}
			})
		}
		_, errs[rt.Rank()] = rt.Join(t.Context(), "three", []int{0, 1, 2})
		if rt.Rank() == 1 {
			close(refused)
		}
		if err := rt.Close(); err != nil {
			t.Errorf("closing rank %d: %v", rt.Rank(), err)
		}
	})
	if !errors.Is(errs[0], symmem.ErrClosed) {
		t.Errorf("rank 0 got %v, want closed", errs[0])
	}
	for rank, err := range errs[1:] {
		var deadlock *symmem.DeadlockError
		if !errors.As(err, &deadlock) || len(deadlock.Elsewhere) != 1 || deadlock.Elsewhere[0] == "" {
			t.Errorf("rank %d got %v, want that rank 0 has closed", rank+1, err)
		}
	}
}

// TestCloseAbortsAllStreamsAtOnce: four streams take no longer than one.
func TestCloseAbortsAllStreamsAtOnce(t *testing.T) {
	const timeout, streams = 500 * time.Millisecond, 4
	runRanks(t, 1, symmem.Options{Timeout: timeout}, func(r *rank) {
		for range streams {
			r.hold(r.stream())
		}
		begin := time.Now()
		r.wantTimeout(r.Close())
		if took := time.Since(begin); took > (streams-1)*2*timeout {
			r.failf("it took %v", took)
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
			r.failf("%d pools and %d groups are left", len(after.Pools), len(after.Groups))
		}
	})
}

// closing begins to close a Runtime, and returns when Close has gone as far as it can.
func closing(rt *symmem.Runtime) (closed chan error) {
	closed = make(chan error, 1)
	go func() { closed <- rt.Close() }()
	for {
		if _, err := rt.NewEvent(); err != nil {
			awhile()
			return closed
		}
	}
}

// awhile gives other goroutines the time to do what they must not, or to come to where they wait.
func awhile() { <-time.After(50 * time.Millisecond) }

func TestCloseDuringNewPool(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		var closed chan error
		symmem.HoldArena(r.Runtime, func() { closed = closing(r.Runtime) })
		p, err := r.NewPool(symmem.PoolOptions{})
		r.ok(err)
		r.ok(<-closed)
		_, err = p.Alloc(mib)
		r.wantErr(err, symmem.ErrClosed)
	})
}

// TestCloseDuringJoinClosesGroup, too: Close has waited for it, and gone on.
func TestCloseDuringJoinClosesGroup(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		symmem.HoldConnect(r.Runtime, func() { r.ok(r.Close()) })
		_, err := r.Join(r.ctx, "late", []int{0})
		r.wantErr(err, symmem.ErrClosed)
	})
}

// TestCloseKeepsMemoryOfUnfinishedWork while the Runtime is closed; it goes once the work has
// ended, which the end of all tests looks at.
func TestCloseKeepsMemoryOfUnfinishedWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		r.requireAddressable() // a GPU's stays in this process
		b, s := r.alloc(r.pool(), mib), r.stream()
		r.hold(s)
		r.ok(s.Fill(b.Memory(), 1))
		r.ok(b.Free())
		r.wantTimeout(r.Close())
	})
}

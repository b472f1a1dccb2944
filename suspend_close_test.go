package symmem_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"symmem"
)

func yieldRandomly() {
	for range rand.IntN(300) {
		runtime.Gosched()
	}
}

// suspendAndResume repeats both calls until one of them fails, and returns the error.
func suspendAndResume(suspend, resume func(context.Context) error) error {
	for {
		if err := suspend(context.Background()); err != nil {
			return err
		}
		if err := resume(context.Background()); err != nil {
			return err
		}
	}
}

// TestCloseDuringSuspensionOfPool closes a pool at random moments of its suspensions.
func TestCloseDuringSuspensionOfPool(t *testing.T) {
	runRanks(t, 1, suspendOptions(), func(r *rank) {
		for range 200 {
			p := r.poolWith(symmem.PoolOptions{FirstSegment: 2 * mib})
			b := r.alloc(p, mib)
			var cycling sync.WaitGroup
			cycling.Go(func() {
				err := suspendAndResume(func(ctx context.Context) error {
					_, err := p.Suspend(ctx, symmem.KeepContents)
					return err
				}, p.Resume)
				if !errors.Is(err, symmem.ErrClosed) {
					t.Errorf("Suspend or Resume = %v while the pool is being closed, want ErrClosed", err)
				}
			})
			yieldRandomly()
			r.ok(b.Free())
			r.ok(p.Close())
			cycling.Wait()
			_, err := p.Alloc(1)
			r.wantErr(err, symmem.ErrClosed)
			if segments := slices.Collect(p.Segments()); len(segments) > 0 || p.Suspended() {
				r.failf("%d segments are mapped after Close, and Suspended() = %v; want none and false",
					len(segments), p.Suspended())
			}
		}
	})
}

// TestCloseWaitsForSuspension closes a pool on both ranks while another goroutine of the rank is
// in Suspend or Resume. Close, Suspend and Resume must succeed, because the other rank takes part
// in Suspend and Resume.
func TestCloseWaitsForSuspension(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		for round := range 40 {
			p := r.pool()
			b := r.window(p, mib)
			r.checkSum(r.World(), b)
			r.ok(b.Free())
			call := func() error {
				_, err := p.Suspend(r.ctx, symmem.DiscardContents)
				return err
			}
			if round%2 == 1 {
				r.ok(call())
				call = func() error { return p.Resume(r.ctx) }
			}
			result := make(chan error, 1)
			go func() { result <- call() }()
			for !symmem.ChangesSuspension(p) && len(result) == 0 { // until the call begins or ends
				runtime.Gosched()
			}
			yieldRandomly()
			r.ok(p.Close())
			r.ok(<-result)
			r.ok(r.World().Barrier(r.ctx, nil))
		}
	})
}

// TestFailedCloseKeepsPoolSuspended checks that a suspended pool stays suspended if Close fails.
func TestFailedCloseKeepsPoolSuspended(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		r.suspend(p, symmem.DiscardContents)
		failingWait := func(context.Context) error { return symmem.ErrBusy }
		r.wantErr(symmem.CloseAfter(p, failingWait), symmem.ErrBusy)
		r.wantErr(r.DefaultStream().Fill(b.Memory(), 1), symmem.ErrSuspended)
		r.resume(p)
		r.checkSum(r.World(), b)
	})
}

// TestCloseDuringSuspensionOfGroup closes a group at random moments of its suspensions. Suspend and
// Resume must return ErrClosed or, if the other rank has closed the group first, an error about
// that rank.
func TestCloseDuringSuspensionOfGroup(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		for range 20 {
			g, p := r.split(r.World(), 0), r.pool()
			b := r.window(p, mib)
			r.checkSum(g, b)
			result := make(chan error, 1)
			go func() {
				result <- suspendAndResume(func(ctx context.Context) error {
					_, err := g.Suspend(ctx)
					return err
				}, g.Resume)
			}()
			yieldRandomly()
			r.ok(g.Close())
			err := <-result
			if errors.Is(err, symmem.ErrUnsupported) {
				return
			}
			if !errors.Is(err, symmem.ErrClosed) && !errors.As(err, new(*symmem.DeadlockError)) &&
				!errors.As(err, new(*symmem.RankLostError)) {
				r.failf("Suspend or Resume = %v; want ErrClosed, DeadlockError or RankLostError", err)
			}
			r.ok(r.World().Barrier(r.ctx, nil))
			r.synchronize()
			r.checkSum(r.World(), b)
		}
	})
}

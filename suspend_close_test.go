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

// yieldRandomly varies the moment of Close.
func yieldRandomly() {
	const maxYields = 300
	for range rand.IntN(maxYields) {
		runtime.Gosched()
	}
}

// alternate suspends and resumes until a call fails, and returns the error.
func alternate(suspend, resume func(context.Context) error) error {
	for {
		if err := suspend(context.Background()); err != nil {
			return err
		}

		if err := resume(context.Background()); err != nil {
			return err
		}
	}
}

func TestCloseDuringSuspensionOfPool(t *testing.T) {
	const rounds = 200
	runRanks(t, 1, suspendOptions(), func(r *rank) {
		for range rounds {
			p := r.poolWith(symmem.PoolOptions{FirstSegment: 2 * mib})
			b := r.alloc(p, mib)
			var alternating sync.WaitGroup
			suspend := func(ctx context.Context) error {
				_, err := p.Suspend(ctx, symmem.KeepContents)
				return err
			}
			alternating.Go(func() {
				err := alternate(suspend, p.Resume)
				if !errors.Is(err, symmem.ErrClosed) {
					t.Errorf("Suspend or Resume = %v while the pool is being closed, want ErrClosed", err)
				}
			})
			yieldRandomly()
			r.ok(b.Free())
			r.ok(p.Close())
			alternating.Wait()
			_, err := p.Alloc(1)
			r.wantErr(err, symmem.ErrClosed)
			if segments := slices.Collect(p.Segments()); len(segments) > 0 {
				r.failf("%d segments are mapped after Close, want none", len(segments))
			}

			if p.Suspended() {
				r.failf("Suspended() = true after Close, want false")
			}
		}
	})
}

// Close waits for a Suspend or Resume in progress, which the other rank needs.
func TestCloseWaitsForSuspension(t *testing.T) {
	const rounds = 40
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		for round := range rounds {
			p := r.pool()
			b := r.window(p, mib)
			r.checkSum(r.World(), b)
			r.ok(b.Free())
			suspend := func() error {
				_, err := p.Suspend(r.ctx, symmem.DiscardContents)
				return err
			}
			resume := func() error { return p.Resume(r.ctx) }
			call := suspend
			if isOdd := round%2 == 1; isOdd {
				r.ok(suspend())
				call = resume
			}

			result := make(chan error, 1)
			go func() { result <- call() }()
			hasReturned := func() bool { return len(result) > 0 }
			isInProgress := func() bool { return symmem.ChangesSuspension(p) }
			for !isInProgress() && !hasReturned() {
				runtime.Gosched()
			}

			yieldRandomly()
			r.ok(p.Close())
			r.ok(<-result)
			r.ok(r.World().Barrier(r.ctx, nil))
		}
	})
}

func TestFailedCloseKeepsPoolSuspended(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		r.suspend(p, symmem.DiscardContents)
		failingWait := func(context.Context) error { return symmem.ErrBusy }
		closeErr := symmem.CloseAfter(p, failingWait)
		r.wantErr(closeErr, symmem.ErrBusy)
		fillErr := r.DefaultStream().Fill(b.Memory(), 1)
		r.wantErr(fillErr, symmem.ErrSuspended)
		r.resume(p)
		r.checkSum(r.World(), b)
	})
}

// Suspend and Resume fail with another error if the other rank closes the group first.
func TestCloseDuringSuspensionOfGroup(t *testing.T) {
	const rounds = 20
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		for range rounds {
			const color = 0 // of both ranks
			g, p := r.split(r.World(), color), r.pool()
			b := r.window(p, mib)
			r.checkSum(g, b)
			suspend := func(ctx context.Context) error {
				_, err := g.Suspend(ctx)
				return err
			}
			result := make(chan error, 1)
			go func() { result <- alternate(suspend, g.Resume) }()
			yieldRandomly()
			r.ok(g.Close())
			err := <-result
			if errors.Is(err, symmem.ErrUnsupported) {
				return // the backend cannot suspend groups
			}

			var deadlock *symmem.DeadlockError
			var rankLost *symmem.RankLostError
			otherHasClosed := errors.As(err, &deadlock) || errors.As(err, &rankLost)
			if !errors.Is(err, symmem.ErrClosed) && !otherHasClosed {
				r.failf("Suspend or Resume = %v; want ErrClosed, DeadlockError or RankLostError", err)
			}

			r.ok(r.World().Barrier(r.ctx, nil))
			r.synchronize()
			r.checkSum(r.World(), b)
		}
	})
}

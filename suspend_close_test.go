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
	const maxYields = 300
	for range rand.IntN(maxYields) {
		runtime.Gosched()
	}
}

// suspendAndResume alternates the calls until one of them fails, and returns the error.
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

func TestCloseDuringSuspensionOfPool(t *testing.T) {
	const rounds = 200
	runRanks(t, 1, suspendOptions(), func(r *rank) {
		for range rounds {
			p := r.poolWith(symmem.PoolOptions{FirstSegment: 2 * mib})
			b := r.alloc(p, mib)
			var cycling sync.WaitGroup
			suspend := func(ctx context.Context) error {
				_, err := p.Suspend(ctx, symmem.KeepContents)
				return err
			}
			cycling.Go(func() {
				err := suspendAndResume(suspend, p.Resume)
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
			if segments := slices.Collect(p.Segments()); len(segments) > 0 {
				r.failf("%d segments are mapped after Close, want none", len(segments))
			}

			if p.Suspended() {
				r.failf("Suspended() = true after Close, want false")
			}
		}
	})
}

// Suspend and Resume need both ranks, so Close lets a call in progress finish.
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
			call := suspend
			testsResume := round%2 == 1
			if testsResume {
				r.ok(suspend())
				call = func() error { return p.Resume(r.ctx) }
			}

			result := make(chan error, 1)
			go func() { result <- call() }()
			hasEnded := func() bool { return len(result) > 0 }
			for !symmem.ChangesSuspension(p) && !hasEnded() {
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

// If the other rank closes the group first, Suspend and Resume return an error about that rank.
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
			go func() { result <- suspendAndResume(suspend, g.Resume) }()
			yieldRandomly()
			r.ok(g.Close())
			err := <-result
			if errors.Is(err, symmem.ErrUnsupported) {
				return // the backend cannot suspend groups
			}

			namesOtherRank := errors.As(err, new(*symmem.DeadlockError)) ||
				errors.As(err, new(*symmem.RankLostError))
			if !errors.Is(err, symmem.ErrClosed) && !namesOtherRank {
				r.failf("Suspend or Resume = %v; want ErrClosed, DeadlockError or RankLostError", err)
			}

			r.ok(r.World().Barrier(r.ctx, nil))
			r.synchronize()
			r.checkSum(r.World(), b)
		}
	})
}

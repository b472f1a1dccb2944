package symmem_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"symmem"
	"symmem/driver/nccl"
	"symmem/internal/cuda"
)

func (r *rank) availableMemory() (free int64) {
	r.t.Helper()
	r.ok(nccl.Current(r.Rank(), func(gpu *cuda.Driver) (err error) {
		free, _, err = gpu.MemGetInfo()
		return err
	}))
	return free
}

// TestSuspendFreesDeviceMemory compares the GPU memory that Suspend frees with the sizes of a pool
// and of a group's exchange memory.
func TestSuspendFreesDeviceMemory(t *testing.T) {
	all := newGate(2)
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		if r.Device().Addressable {
			r.skip("the backend has no device memory", symmem.ErrUnsupported)
		}
		w, freeBefore := r.World(), r.availableMemory()
		g := r.split(w, 0)
		p := r.poolWith(symmem.PoolOptions{Domain: w, FirstSegment: 256 * mib})
		b := r.window(p, mib)
		r.checkSum(g, b)
		all.wait(r)
		freeInUse := r.availableMemory()
		poolSuspension := r.suspend(p, symmem.DiscardContents)
		all.wait(r)
		freeWithoutPool := r.availableMemory()
		groupSuspension := suspendGroup(r, g)
		all.wait(r)
		freeWithoutBoth := r.availableMemory()
		for name, freed := range map[string]struct{ got, want int64 }{
			"pool":  {freeWithoutPool - freeInUse, poolSuspension.Released},
			"group": {freeWithoutBoth - freeWithoutPool, groupSuspension.Released},
		} {
			if freed.want <= 0 || freed.got < freed.want*95/100 {
				r.failf("suspending the %s freed %d bytes of GPU memory, want at least 95%% of %d", name,
					freed.got, freed.want)
			}
		}
		t.Logf("rank %d: %d bytes free before the group and pool were created, %d with both in use, "+
			"%d with the pool suspended, %d with both suspended; kept: %v",
			r.Rank(), freeBefore, freeInUse, freeWithoutPool, freeWithoutBoth, groupSuspension.Kept)
		all.wait(r)
		resumeGroup(r, g)
		r.resume(p)
		r.checkSum(g, b)
		all.wait(r)
		if now := r.availableMemory(); now < freeInUse-4*mib {
			r.failf("%d bytes are free after Resume, want about %d, as before Suspend", now, freeInUse)
		}
	})
}

func BenchmarkSuspend(b *testing.B) {
	const smallPool = 64 * mib
	for _, size := range []int64{smallPool, 1024 * mib} {
		if testing.Short() && size > smallPool {
			continue // copying the contents would take a quarter of a minute
		}
		for _, contents := range []symmem.Contents{symmem.DiscardContents, symmem.KeepContents} {
			b.Run(fmt.Sprintf("pool of %d MiB, %v", size/mib, contents), func(b *testing.B) {
				benchmarkCycles(b, size, func(_ *symmem.Runtime, p *symmem.Pool) error {
					if _, err := p.Suspend(b.Context(), contents); err != nil {
						return err
					}
					return p.Resume(b.Context())
				})
			})
		}
	}
	b.Run("group", func(b *testing.B) {
		benchmarkCycles(b, smallPool, func(rt *symmem.Runtime, _ *symmem.Pool) error {
			if _, err := rt.World().Suspend(b.Context()); err != nil {
				return err
			}
			return rt.World().Resume(b.Context())
		})
	})
}

// benchmarkCycles measures cycle on two ranks, each with a pool of the given size.
func benchmarkCycles(
	b *testing.B, bytes int64, cycle func(*symmem.Runtime, *symmem.Pool) error,
) {
	o := withBackend(symmem.Options{Path: symmem.PathAuto, Timeout: time.Minute})
	runtimes, err := symmem.OpenLocal(b.Context(), 2, o)
	if errors.Is(err, symmem.ErrUnsupported) {
		b.Skip(err)
	}
	if err != nil {
		b.Fatal(err)
	}
	pools := make([]*symmem.Pool, 2)
	inParallel(b, runtimes, func(rt *symmem.Runtime) error {
		p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: bytes})
		if err != nil {
			return err
		}
		pools[rt.Rank()] = p
		if _, err := p.Alloc(bytes / 2); err != nil {
			return err
		}
		return p.Register(b.Context(), rt.World())
	})
	b.ResetTimer()
	for b.Loop() {
		inParallel(b, runtimes, func(rt *symmem.Runtime) error { return cycle(rt, pools[rt.Rank()]) })
	}
	b.StopTimer()
	inParallel(b, runtimes, func(rt *symmem.Runtime) error {
		symmem.FreeLive(rt)
		return rt.Close()
	})
}

// inParallel runs f on all ranks concurrently, and fails the benchmark if it fails on any rank.
func inParallel(b *testing.B, runtimes []*symmem.Runtime, f func(*symmem.Runtime) error) {
	b.Helper()
	errs := make([]error, len(runtimes))
	var running sync.WaitGroup
	for i, rt := range runtimes {
		running.Go(func() { errs[i] = f(rt) })
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
}

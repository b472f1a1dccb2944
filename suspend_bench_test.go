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

func (r *rank) freeGPUBytes() (free int64) {
	r.t.Helper()
	err := nccl.Current(r.Rank(), func(gpu *cuda.Driver) (err error) {
		free, _, err = gpu.MemGetInfo()
		return err
	})
	r.ok(err)
	return free
}

// Suspend frees as much GPU memory as it reports.
func TestSuspendFreesDeviceMemory(t *testing.T) {
	const ranks = 2
	allRanks := newGate(ranks)
	runRanks(t, ranks, suspendOptions(), func(r *rank) {
		if r.Device().Addressable {
			r.skip("the backend has no device memory", symmem.ErrUnsupported)
		}

		// Ranks may share a GPU, so no rank suspends or resumes while another one measures.
		measureFree := func() int64 {
			allRanks.wait(r)
			free := r.freeGPUBytes()
			allRanks.wait(r)
			return free
		}
		freeBefore := measureFree()
		const color = 0 // of both ranks
		g := r.split(r.World(), color)
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 256 * mib})
		b := r.window(p, mib)
		r.checkSum(g, b)
		freeInUse := measureFree()
		poolSuspension := r.suspend(p, symmem.DiscardContents)
		freeWithoutPool := measureFree()
		groupSuspension := suspendGroup(r, g)
		freeWithoutBoth := measureFree()
		checkReleased(r, "pool", poolSuspension.Released, freeWithoutPool-freeInUse)
		checkReleased(r, "group", groupSuspension.Released, freeWithoutBoth-freeWithoutPool)
		t.Logf("rank %d: %d bytes free before the group and pool were created, %d with both in use, "+
			"%d with the pool suspended, %d with both suspended; kept: %v",
			r.Rank(), freeBefore, freeInUse, freeWithoutPool, freeWithoutBoth, groupSuspension.Kept)
		resumeGroup(r, g)
		r.resume(p)
		r.checkSum(g, b)
		const tolerance = 4 * mib
		if free, want := measureFree(), freeInUse-tolerance; free < want {
			r.failf("%d bytes are free after Resume, want at least %d; before Suspend, %d were free", free,
				want, freeInUse)
		}
	})
}

func checkReleased(r *rank, name string, reported, measured int64) {
	r.t.Helper()
	if reported <= 0 {
		r.failf("Suspend of the %s released %d bytes, want a positive number", name, reported)
	}

	const minPercent = 95 // CUDA may allocate a little memory at the same time
	if measured < reported*minPercent/100 {
		r.failf("suspending the %s freed %d bytes of GPU memory, want at least %d%% of %d", name,
			measured, minPercent, reported)
	}
}

func BenchmarkSuspend(b *testing.B) {
	const smallPool, largePool = 64 * mib, 1024 * mib
	for _, size := range []int64{smallPool, largePool} {
		if testing.Short() && size == largePool {
			continue // copying the contents of a large pool takes about 15 seconds
		}

		for _, contents := range []symmem.Contents{symmem.DiscardContents, symmem.KeepContents} {
			b.Run(fmt.Sprintf("pool of %d MiB, %v", size/mib, contents), func(b *testing.B) {
				benchmarkOnPools(b, size, func(_ *symmem.Runtime, p *symmem.Pool) error {
					if _, err := p.Suspend(b.Context(), contents); err != nil {
						return err
					}

					return p.Resume(b.Context())
				})
			})
		}
	}

	b.Run("group", func(b *testing.B) {
		benchmarkOnPools(b, smallPool, func(rt *symmem.Runtime, _ *symmem.Pool) error {
			if _, err := rt.World().Suspend(b.Context()); err != nil {
				return err
			}

			return rt.World().Resume(b.Context())
		})
	})
}

// benchmarkOnPools measures call on two ranks, each with a half-full pool.
func benchmarkOnPools(
	b *testing.B, poolBytes int64, call func(*symmem.Runtime, *symmem.Pool) error,
) {
	const ranks = 2
	options := withBackend(symmem.Options{Path: symmem.PathAuto, Timeout: time.Minute})
	runtimes, err := symmem.OpenLocal(b.Context(), ranks, options)
	if errors.Is(err, symmem.ErrUnsupported) { // too few devices
		b.Skip(err)
	}

	if err != nil {
		b.Fatal(err)
	}

	pools := make([]*symmem.Pool, ranks)
	inParallel(b, runtimes, func(rt *symmem.Runtime) error {
		p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: poolBytes})
		if err != nil {
			return err
		}

		pools[rt.Rank()] = p
		if _, err := p.Alloc(poolBytes / 2); err != nil {
			return err
		}

		return p.Register(b.Context(), rt.World())
	})
	b.ResetTimer()
	for b.Loop() {
		inParallel(b, runtimes, func(rt *symmem.Runtime) error {
			return call(rt, pools[rt.Rank()])
		})
	}

	b.StopTimer()
	inParallel(b, runtimes, func(rt *symmem.Runtime) error {
		symmem.FreeLive(rt)
		return rt.Close()
	})
}

// inParallel runs f on all ranks concurrently.
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

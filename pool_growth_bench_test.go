package symmem_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"symmem"
)

// maxWindows is the limit for the number of windows of a pool of 4 GiB with the default sizing. A
// window is a segment that is registered with a group.
const maxWindows = 8

// BenchmarkGrowth measures how long the slowest rank needs to register the memory of a pool that
// grows to 4 GiB, as when a model is loaded. Requests have 2 to 48 MiB, and each has a scope. With
// the default sizing (by=pool), the sizes of segments grow with the pool. With PyTorch's sizing
// (by=pytorch), nearly every request needs a segment and a window.
func BenchmarkGrowth(b *testing.B) {
	bytes := int64(4 << 30)
	if testing.Short() {
		bytes = 128 << 20
	}

	ranks := 2
	if gpus := availableRanks(b); gpus <= 4 {
		ranks = gpus // the host backend has no such limit, and gets 2 ranks
	}

	const seed = 1
	sizes := requestSizes(bytes, seed)
	runtimes := local(b, ranks)
	each(b, runtimes, func(_ int, rt *symmem.Runtime) error {
		// PathWindow makes the group register windows even if no call needs them.
		return rt.World().SetPath(b.Context(), symmem.PathWindow)
	})
	b.Run("by=pool", func(b *testing.B) {
		if n := growPools(b, runtimes, symmem.PoolOptions{}, sizes); n > maxWindows {
			b.Errorf("%d windows, want at most %d", n, maxWindows)
		}
	})
	b.Run("by=pytorch", func(b *testing.B) {
		growPools(b, runtimes, symmem.PoolOptions{Sizing: symmem.SizeAsPyTorch}, sizes)
	})
}

// growPools repeatedly creates a pool, allocates the sizes in scopes and closes the pool, on all
// ranks. It reports the time of the slowest rank and returns the pool's number of windows.
func growPools(
	b *testing.B, runtimes []*symmem.Runtime, o symmem.PoolOptions, sizes []int64,
) (windows int) {
	b.Helper()
	total := time.Duration(0) // of the slowest ranks
	for b.Loop() {
		times := make([]time.Duration, len(runtimes)) // by rank
		each(b, runtimes, func(i int, rt *symmem.Runtime) error {
			ownOptions := o
			ownOptions.Domain = rt.World()
			pool, err := rt.NewPool(ownOptions)
			if err != nil {
				return err
			}

			times[i], err = timeRegistrations(b, pool, sizes)
			if i == 0 {
				windows = pool.Stats().Windows
			}

			return errors.Join(err, pool.Close())
		})
		total += slices.Max(times)
	}

	b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "ns/op") // replaces the whole time
	b.ReportMetric(float64(windows), "windows")
	return windows
}

// timeRegistrations allocates each size in a separate scope and returns the total time of the ends
// of the scopes, which register the memory.
func timeRegistrations(
	b *testing.B, pool *symmem.Pool, sizes []int64,
) (took time.Duration, err error) {
	b.Helper()
	for _, bytes := range sizes {
		s := pool.Begin(pool.Domain())
		buffer, allocErr := s.Alloc(bytes)
		if allocErr != nil {
			return took, allocErr
		}

		// Buffers stay live until the end of the function, so that each one needs new memory.
		defer func() {
			freeErr := buffer.Free()
			err = errors.Join(err, freeErr)
		}()
		begin := time.Now()
		if err := s.End(b.Context()); err != nil {
			return took, err
		}

		took += time.Since(begin)
	}

	return took, nil
}

// Range of the sizes of BenchmarkGrowth in bytes.
const (
	minRequest = 2 << 20
	maxRequest = 48 << 20
)

// requestSizes draws sizes that add up to sum. The last size may be smaller than minRequest.
func requestSizes(sum int64, seed uint64) []int64 {
	draws := rand.New(rand.NewPCG(seed, 0))
	var all []int64
	for remaining := sum; remaining > 0; {
		next := min(remaining, minRequest+draws.Int64N(maxRequest-minRequest+1))
		all = append(all, next)
		remaining -= next
	}

	return all
}

// TestGrowthRequestsDependOnSeedOnly checks that sizes are in range, add up to the sum, and are the
// same for the same seed.
func TestGrowthRequestsDependOnSeedOnly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bytes := rapid.Int64Range(1, 1<<33).Draw(rt, "bytes")
		seed := rapid.Uint64().Draw(rt, "seed")
		all := requestSizes(bytes, seed)
		sum := int64(0)
		for i, n := range all {
			sum += n
			smallest := int64(minRequest)
			if i == len(all)-1 { // the rest of the sum
				smallest = 1
			}

			if n < smallest || n > maxRequest {
				rt.Fatalf("request %d of %d has %d bytes, want %d to %d", i, len(all), n, smallest,
					maxRequest)
			}
		}

		if sum != bytes {
			rt.Fatalf("the requests add up to %d bytes, want %d", sum, bytes)
		}

		if !slices.Equal(all, requestSizes(bytes, seed)) {
			rt.Fatal("the same seed draws different requests, want the same ones")
		}
	})
}

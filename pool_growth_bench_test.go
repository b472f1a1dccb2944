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

// While a model is loaded, a pool grows to 4 GiB. Each request of 2 to 48 MiB has a scope. At the
// end of the scope, all ranks register the segments that the pool has mapped for it. A registered
// segment is a window. With the default sizing, segments become larger as the pool grows, so few
// scopes need a window. With PyTorch's sizing, nearly every scope needs one.

// maxWindows is the limit for the number of windows of a pool of 4 GiB with the default sizing.
const maxWindows = 8

// BenchmarkGrowth measures how long the slowest rank needs to register the memory of such a pool,
// with the default sizing (by=pool) and with PyTorch's (by=pytorch).
func BenchmarkGrowth(b *testing.B) {
	bytes := int64(4 << 30)
	if testing.Short() {
		bytes = 128 << 20
	}

	ranks := 2
	if available := availableRanks(b); available <= 4 { // the host backend has no limit
		ranks = available
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

// growPools repeatedly creates a pool, allocates the sizes and closes the pool, on all ranks. It
// reports the time of the slowest rank, and returns the number of windows of rank 0's last pool.
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

	// Replace the time of the whole loop.
	b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "ns/op")
	b.ReportMetric(float64(windows), "windows")
	return windows
}

// timeRegistrations allocates each size in a separate scope. It returns the time that the ends of
// the scopes take together.
func timeRegistrations(
	b *testing.B, pool *symmem.Pool, sizes []int64,
) (took time.Duration, err error) {
	b.Helper()
	for _, bytes := range sizes {
		scope := pool.Begin(pool.Domain())
		buffer, allocErr := scope.Alloc(bytes)
		if allocErr != nil {
			return took, allocErr
		}

		// No buffer is freed before the function returns, so that each one needs new memory.
		defer func() {
			freeErr := buffer.Free()
			err = errors.Join(err, freeErr)
		}()
		begin := time.Now()
		if err := scope.End(b.Context()); err != nil {
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

// TestGrowthRequestsDependOnSeedOnly draws the sizes for a random sum. They must be in range and
// add up to the sum. With the same seed, they must be the same.
func TestGrowthRequestsDependOnSeedOnly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bytes := rapid.Int64Range(1, 1<<33).Draw(rt, "bytes")
		seed := rapid.Uint64().Draw(rt, "seed")
		all := requestSizes(bytes, seed)
		sum := int64(0)
		for i, n := range all {
			sum += n
			smallest := int64(minRequest)
			isLast := i == len(all)-1
			if isLast { // the rest of the sum
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

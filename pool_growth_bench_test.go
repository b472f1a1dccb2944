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

// maxWindows limits the registered segments (windows) of a pool of 4 GiB with the default sizing.
const maxWindows = 8

// BenchmarkGrowth simulates loading a model: a pool grows to 4 GiB and registers new segments after
// each request. With the default sizing, segments grow with the pool, so few requests need a new
// segment. With PyTorch's sizing, nearly every request does.
func BenchmarkGrowth(b *testing.B) {
	bytes := int64(4 << 30)
	if testing.Short() {
		bytes = 128 << 20
	}

	ranks := availableRanks(b)
	if ranks > 4 { // the host backend has no limit
		ranks = 2
	}

	const seed = 1 // arbitrary
	sizes := requestSizes(bytes, seed)
	runtimes := local(b, ranks)
	each(b, runtimes, func(_ int, rt *symmem.Runtime) error {
		// PathWindow makes the group register all segments, even without a call.
		return rt.World().SetPath(b.Context(), symmem.PathWindow)
	})
	b.Run("by=pool", func(b *testing.B) {
		windows := growPools(b, runtimes, symmem.PoolOptions{}, sizes)
		if windows > maxWindows {
			b.Errorf("%d windows, want at most %d", windows, maxWindows)
		}
	})
	b.Run("by=pytorch", func(b *testing.B) {
		growPools(b, runtimes, symmem.PoolOptions{Sizing: symmem.SizeAsPyTorch}, sizes)
	})
}

// growPools creates, fills and closes a pool in each iteration, and reports the time that the
// registrations take on the slowest rank. It returns the number of windows of rank 0.
func growPools(
	b *testing.B, runtimes []*symmem.Runtime, o symmem.PoolOptions, sizes []int64,
) (windows int) {
	b.Helper()
	var slowestTotal time.Duration
	for b.Loop() {
		times := make([]time.Duration, len(runtimes)) // by rank
		each(b, runtimes, func(number int, rt *symmem.Runtime) error {
			ownOptions := o
			ownOptions.Domain = rt.World()
			pool, err := rt.NewPool(ownOptions)
			if err != nil {
				return err
			}

			times[number], err = timeRegistrations(b, pool, sizes)
			if number == 0 {
				windows = pool.Stats().Windows
			}

			return errors.Join(err, pool.Close())
		})
		slowestTotal += slices.Max(times)
	}

	// Report the time of the registrations as the time of an iteration.
	b.ReportMetric(float64(slowestTotal.Nanoseconds())/float64(b.N), "ns/op")
	b.ReportMetric(float64(windows), "windows")
	return windows
}

// timeRegistrations allocates each size in a separate scope. It measures only the ends of the
// scopes, which register new segments.
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

		// Free the buffers only at the end, so that each request needs new memory.
		defer func() {
			freeErr := buffer.Free()
			err = errors.Join(err, freeErr)
		}()
		begin := time.Now()
		if endErr := scope.End(b.Context()); endErr != nil {
			return took, endErr
		}

		took += time.Since(begin)
	}

	return took, nil
}

const ( // arbitrary
	minRequestBytes = 2 << 20
	maxRequestBytes = 48 << 20
)

// requestSizes draws sizes that add up to sum. The last one may be smaller than minRequestBytes.
func requestSizes(sum int64, seed uint64) []int64 {
	draws := rand.New(rand.NewPCG(seed, 0))
	var all []int64
	for remaining := sum; remaining > 0; {
		drawn := minRequestBytes + draws.Int64N(maxRequestBytes-minRequestBytes+1)
		bytes := min(remaining, drawn)
		all = append(all, bytes)
		remaining -= bytes
	}

	return all
}

func TestGrowthRequestsDependOnSeedOnly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const maxBytes = 8 << 30
		bytes := rapid.Int64Range(1, maxBytes).Draw(rt, "bytes")
		seed := rapid.Uint64().Draw(rt, "seed")
		all := requestSizes(bytes, seed)
		sum := int64(0)
		for i, n := range all {
			sum += n
			smallest := int64(minRequestBytes)
			isLast := i == len(all)-1
			if isLast {
				smallest = 1
			}

			if n < smallest || n > maxRequestBytes {
				rt.Fatalf("request %d of %d has %d bytes, want %d to %d", i, len(all), n, smallest,
					maxRequestBytes)
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

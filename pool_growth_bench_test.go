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

// maxWindows limits the windows of a pool of 4 GiB.
const maxWindows = 8

// BenchmarkGrowth measures how long the slowest rank needs to register the memory of a pool that
// grows to 4 GiB, as when a model is loaded. Each request of 2 to 48 MiB has a scope. With the
// default sizing, segments grow with the pool; with PyTorch's, nearly every request needs a segment
// and a window.
func BenchmarkGrowth(b *testing.B) {
	bytes := int64(4 << 30)
	if testing.Short() {
		bytes = 128 << 20
	}
	ranks := 2
	if n := availableRanks(b); n <= 4 {
		ranks = n // one per GPU
	}
	sizes := requestSizes(bytes, 1)
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

func growPools(
	b *testing.B, runtimes []*symmem.Runtime, o symmem.PoolOptions, sizes []int64,
) (windows int) {
	b.Helper()
	took := time.Duration(0)
	for b.Loop() {
		times := make([]time.Duration, len(runtimes))
		each(b, runtimes, func(i int, rt *symmem.Runtime) error {
			o := o
			o.Domain = rt.World()
			pool, err := rt.NewPool(o)
			if err != nil {
				return err
			}
			times[i], err = timeRegistrations(b, pool, sizes)
			if i == 0 {
				windows = pool.Stats().Windows
			}
			return errors.Join(err, pool.Close())
		})
		took += slices.Max(times)
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/op")
	b.ReportMetric(float64(windows), "windows")
	return windows
}

// timeRegistrations allocates each request in a separate scope and times the ends of the scopes.
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
		defer func() { err = errors.Join(err, buffer.Free()) }()
		begin := time.Now()
		if err := s.End(b.Context()); err != nil {
			return took, err
		}
		took += time.Since(begin)
	}
	return took, nil
}

const (
	minRequest = 2 << 20
	maxRequest = 48 << 20
)

// requestSizes draws sizes that add up to sum. The last one may be smaller than minRequest.
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

func TestGrowthRequestsDependOnSeedOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.Int64Range(1, 1<<33).Draw(t, "bytes")
		seed := rapid.Uint64().Draw(t, "seed")
		all, sum := requestSizes(bytes, seed), int64(0)
		for i, n := range all {
			sum += n
			last := i == len(all)-1
			if n > maxRequest || n < 1 || n < minRequest && !last {
				t.Fatalf("request %d of %d has %d bytes", i, len(all), n)
			}
		}
		if sum != bytes {
			t.Fatalf("the requests add up to %d, want %d", sum, bytes)
		}
		if !slices.Equal(all, requestSizes(bytes, seed)) {
			t.Fatal("the same seed draws different requests")
		}
	})
}

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

// maxWindows is how many windows the growth of a pool may make by the design.
const maxWindows = 8

// BenchmarkGrowth measures the registration of memory that grows request by request, as a model
// that is loaded does: 4 GiB in requests of 2 to 48 MiB. A pool maps segments that grow with it,
// and the end of a scope around each request registers what is new. The other way is PyTorch's
// sizing, which has a segment, and so a window, for nearly each request. A time is that of all
// registrations together, on the slowest rank.
func BenchmarkGrowth(b *testing.B) {
	bytes := int64(4 << 30)
	if testing.Short() {
		bytes = 128 << 20
	}
	ranks := 2
	if n := localRanks(b); n <= 4 {
		ranks = n // a GPU each
	}
	asked := requests(bytes, 1)
	runtimes := local(b, ranks)
	each(b, runtimes, func(_ int, rt *symmem.Runtime) error {
		// A group that can do without windows makes none otherwise.
		return rt.World().SetPath(b.Context(), symmem.PathWindow)
	})
	b.Run("by=pool", func(b *testing.B) {
		if n := growAll(b, runtimes, symmem.PoolOptions{}, asked); n > maxWindows {
			b.Errorf("%d windows, where %d are allowed", n, maxWindows)
		}
	})
	b.Run("by=pytorch", func(b *testing.B) {
		growAll(b, runtimes, symmem.PoolOptions{Sizing: symmem.SizeAsPyTorch}, asked)
	})
}

// growAll grows a pool of all ranks, and returns how many windows that made.
func growAll(
	b *testing.B, runtimes []*symmem.Runtime, o symmem.PoolOptions, asked []int64,
) (windows int) {
	b.Helper()
	took := time.Duration(0)
	for b.Loop() {
		mine := make([]time.Duration, len(runtimes))
		each(b, runtimes, func(i int, rt *symmem.Runtime) error {
			o := o
			o.Domain = rt.World()
			pool, err := rt.NewPool(o)
			if err != nil {
				return err
			}
			mine[i], err = growBy(b, pool, asked)
			if i == 0 {
				windows = pool.Stats().Windows
			}
			return errors.Join(err, pool.Close())
		})
		took += slices.Max(mine)
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/op")
	b.ReportMetric(float64(windows), "windows")
	return windows
}

// growBy allocates each request in a scope, and returns how long the ends of all took.
func growBy(b *testing.B, pool *symmem.Pool, asked []int64) (took time.Duration, err error) {
	b.Helper()
	for _, bytes := range asked {
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
	leastRequest = 2 << 20
	mostRequest  = 48 << 20
)

// requests draws requests that add up. The last one is what is left.
func requests(sum int64, seed uint64) []int64 {
	draws := rand.New(rand.NewPCG(seed, 0))
	var all []int64
	for left := sum; left > 0; {
		next := min(left, leastRequest+draws.Int64N(mostRequest-leastRequest+1))
		all = append(all, next)
		left -= next
	}
	return all
}

func TestGrowthRequestsDependOnSeedOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.Int64Range(1, 1<<33).Draw(t, "bytes")
		seed := rapid.Uint64().Draw(t, "seed")
		all, sum := requests(bytes, seed), int64(0)
		for i, n := range all {
			sum += n
			last := i == len(all)-1
			if n > mostRequest || n < 1 || n < leastRequest && !last {
				t.Fatalf("request %d of %d has %d bytes", i, len(all), n)
			}
		}
		if sum != bytes {
			t.Fatalf("requests add up to %d, not %d", sum, bytes)
		}
		if !slices.Equal(all, requests(bytes, seed)) {
			t.Fatal("the same seed draws other requests")
		}
	})
}

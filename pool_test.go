package symmem_test

import (
	"errors"
	"slices"
	"testing"

	"symmem"
)

// A pool maps memory in segments, here of 4 MiB at first. A registered segment is a window. The
// ranks of the pool's domain allocate the same buffers.

// A buffer has the same segment and offset on all ranks, although the addresses of segments differ.
func TestPlacementIsSameOnAllRanks(t *testing.T) {
	const ranks = 3
	const buffersPerRank = 200
	var placesByRank errorTexts // one error with all places per rank
	runRanks(t, ranks, symmem.Options{Scatter: scatterSeed}, func(r *rank) {
		p := r.pool()
		var places []string
		var buffers []symmem.Buffer
		for i := range buffersPerRank {
			isThird := i%3 == 2
			if isThird {
				oldest := buffers[i/3]
				r.ok(oldest.Free())
			}

			const unit, sizes = 512, 90
			b := r.alloc(p, int64(unit*(1+i*7%sizes))) // all sizes, in mixed order
			buffers = append(buffers, b)
			places = append(places, place(b))
		}

		placesByRank.add(r, errors.New(join(places)))
		r.ok(r.World().Check(r.ctx))
	})
	placesByRank.requireSame(t, ranks)
}

// A scope, which registers new segments at its end, finds reserved memory registered.
func TestReserve(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		r.ok(p.Reserve(r.ctx, 32*mib, r.World()))
		before := r.World().Stats()
		reserved := p.Stats()
		if before.Windows == 0 || before.Windows != reserved.Segments {
			r.failf("the group has %d windows, want one for each of the %d segments", before.Windows,
				reserved.Segments)
		}

		if reserved.Cached < 32*mib {
			r.failf("%d bytes of cached memory, want at least 32 MiB", reserved.Cached)
		}

		b := r.alloc(p, 32*mib)
		scope := p.Begin(r.World())
		r.ok(scope.End(r.ctx))
		r.checkSum(r.World(), b)
		if after := r.World().Stats(); after.Registrations != before.Registrations {
			r.failf("%d registrations after using reserved memory, want %d", after.Registrations,
				before.Registrations)
		}

		r.ok(b.Free())
		r.ok(p.Reserve(r.ctx, mib, nil)) // without registration
		r.wantErr(p.Reserve(r.ctx, -1, nil), symmem.ErrSize)
	})
}

func TestPoolMapsFewSegments(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		for range 128 {
			r.alloc(p, mib)
		}

		const want = 6 // segments grow: 4, 4, 8, 16, 32 and 64 MiB
		listed := len(slices.Collect(p.Segments()))
		counted := p.Stats().Segments
		if listed != want || counted != want {
			r.failf("Segments has %d elements, Stats %d segments; want %d", listed, counted, want)
		}
	})
}

func TestPoolStatsCountBytes(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a := r.alloc(p, 1000)
		b := r.window(p, mib)   // registers the only segment
		const used = mib + 1024 // sizes are rounded up to multiples of 512
		const free = 4*mib - used
		want := symmem.PoolStats{
			Used: used, Requested: mib + 1000, HighWater: used,
			Cached: free, LargestFree: free, Segments: 1, Windows: 1,
			Events: 3, // a segment and two allocations
		}
		if got := p.Stats(); got != want {
			r.failf("with two buffers: got %+v, want %+v", got, want)
		}

		r.ok(a.Free())
		r.ok(b.Free())
		want.Used = 0
		want.Requested = 0
		want.Cached = 4 * mib
		want.LargestFree = 4 * mib
		want.Events += 2
		if got := p.Stats(); got != want {
			r.failf("with both freed: got %+v, want %+v", got, want)
		}
	})
}

func TestInvalidSizes(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		const tooLarge = 1 << 62
		for _, bytes := range []int64{0, -1, tooLarge} {
			if _, err := p.Alloc(bytes); !errors.Is(err, symmem.ErrSize) {
				r.failf("Alloc(%d): got %v, want ErrSize", bytes, err)
			}
		}

		for _, o := range []symmem.PoolOptions{{Capacity: -1}, {FirstSegment: -1}, {Placement: 9}} {
			if _, err := r.NewPool(o); err == nil {
				r.failf("NewPool(%+v) succeeded, want an error", o)
			}
		}
	})
}

func TestPoolCapacity(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Capacity: 8 * mib, FirstSegment: 4 * mib})
		a := r.alloc(p, 4*mib)
		r.alloc(p, 3*mib)
		_, err := p.Alloc(2 * mib)
		var oom *symmem.OutOfMemoryError
		isOutOfMemory := errors.As(err, &oom) && errors.Is(err, symmem.ErrOutOfMemory)
		if !isOutOfMemory {
			r.failf("got %v, want an OutOfMemoryError that matches ErrOutOfMemory", err)
		}

		if oom.Requested != 2*mib || oom.Free != mib || oom.Capacity != 8*mib {
			r.failf("got %+v, want 2 MiB requested, 1 MiB free, capacity 8 MiB", oom)
		}

		r.ok(a.Free())
		r.alloc(p, 2*mib)
	})
}

// Trim unmaps and deregisters segments without buffers, but keeps at least the given bytes mapped.
func TestTrimKeepsUsedAndRequestedMemory(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		// These buffers fill segments 0, 1 and 2.
		kept := r.alloc(p, 4*mib)
		freed1 := r.alloc(p, 4*mib)
		freed2 := r.window(p, 8*mib) // registers all three segments
		r.ok(freed1.Free())
		r.ok(freed2.Free())
		r.ok(p.Trim(r.ctx, 8*mib)) // keeps segment 0 and one more
		if got := p.Stats(); got.Segments != 2 || got.Windows != 2 || got.Used != 4*mib {
			r.failf("got %+v, want 2 segments, 2 windows and 4 MiB used", got)
		}

		r.checkSum(r.World(), kept)
		r.ok(p.Trim(r.ctx, 0))
		if all := slices.Collect(p.Segments()); len(all) != 1 || all[0].Segment != kept.Segment() {
			r.failf("got the segments %+v, want only %d", all, kept.Segment())
		}

		// Ordinals of segments are never reused.
		added := r.alloc(p, 4*mib)
		if added.Segment() != 3 {
			r.failf("the new segment has ordinal %d, want 3", added.Segment())
		}

		r.checkSum(r.World(), added)
		newGroup := r.split(r.World(), 0)
		r.checkSum(newGroup, kept)
		if n := newGroup.Stats().Windows; n != 2 { // of kept and added
			r.failf("a group created after Trim has %d windows, want 2", n)
		}
	})
}

// Trim of a pool without a domain does not wait for other ranks.
func TestTrimOfSingleRankPool(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 2 * mib})
		if r.Rank() == 0 {
			b := r.alloc(p, mib)
			r.ok(b.Free())
			r.ok(p.Trim(r.ctx, 0))
		}

		if n := p.Stats().Segments; n != 0 || p.Domain() != nil {
			r.failf("got %d segments and the domain %v, want 0 and nil", n, p.Domain())
		}
	})
}

func TestClosedPoolRejectsCalls(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		r.ok(p.Close())
		r.ok(p.Close())
		if n := r.World().Stats().Windows; n != 0 {
			r.failf("%d windows after Close of the pool, want 0", n)
		}

		_, err := p.Alloc(512)
		r.wantErr(err, symmem.ErrClosed)
		r.wantErr(p.Reserve(r.ctx, 512, nil), symmem.ErrClosed)
		r.wantErr(r.sum(r.World(), b), symmem.ErrClosed)
		r.ok(b.Free()) // works without the pool
	})
}

func TestPoolLimitPerDomain(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		const maxPools = 64 // ranks compare at most this many pools at a time
		for i := range maxPools {
			if _, err := r.NewPool(symmem.PoolOptions{Domain: r.World()}); err != nil {
				r.failf("pool %d of at most %d: %v", i+1, maxPools, err)
			}
		}

		_, err := r.NewPool(symmem.PoolOptions{Domain: r.World()})
		r.wantErr(err, symmem.ErrInvalid)
		r.ok(r.World().Check(r.ctx))
	})
}

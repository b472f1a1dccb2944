package symmem_test

import (
	"errors"
	"slices"
	"testing"

	"symmem"
)

// TestPlacementIsSameOnAllRanks makes the same requests on all ranks, whose segments have different
// addresses. Each buffer must have the same segment and offset on all ranks.
func TestPlacementIsSameOnAllRanks(t *testing.T) {
	const ranks, buffersPerRank = 3, 200
	var placesByRank errorTexts // compares texts; an error carries the places of a rank
	runRanks(t, ranks, symmem.Options{Scatter: scatterSeed}, func(r *rank) {
		p := r.pool()
		var places []string
		var buffers []symmem.Buffer
		for i := range buffersPerRank {
			if i%3 == 2 { // free the oldest buffer
				r.ok(buffers[i/3].Free())
			}

			b := r.alloc(p, int64(512*(1+i*7%90))) // 90 sizes in mixed order
			buffers = append(buffers, b)
			places = append(places, place(b))
		}

		placesByRank.add(r, errors.New(join(places)))
		r.ok(r.World().Check(r.ctx))
	})
	placesByRank.requireSame(t, ranks)
}

// TestReserve checks that Reserve maps and registers memory in advance. A scope that uses this
// memory then needs no registration.
func TestReserve(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		r.ok(p.Reserve(r.ctx, 32*mib, r.World()))
		before, reserved := r.World().Stats(), p.Stats()
		if before.Windows == 0 || before.Windows != reserved.Segments {
			r.failf("the group has %d windows, want one for each of the %d segments", before.Windows,
				reserved.Segments)
		}

		if reserved.Cached < 32*mib {
			r.failf("%d bytes of cached memory, want at least 32 MiB", reserved.Cached)
		}

		b := r.alloc(p, 32*mib)
		s := p.Begin(r.World())
		r.ok(s.End(r.ctx))
		r.checkSum(r.World(), b)
		if after := r.World().Stats(); after.Registrations != before.Registrations {
			r.failf("%d registrations after using reserved memory, want %d", after.Registrations,
				before.Registrations)
		}

		r.ok(b.Free())
		r.ok(p.Reserve(r.ctx, mib, nil)) // without a registration
		r.wantErr(p.Reserve(r.ctx, -1, nil), symmem.ErrSize)
	})
}

// TestPoolMapsFewSegments checks that segments grow with the pool, so that there are few of them.
func TestPoolMapsFewSegments(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		for range 128 {
			r.alloc(p, mib)
		}

		const want = 6 // 4 + 4 + 8 + 16 + 32 + 64 MiB
		if n := len(slices.Collect(p.Segments())); n != want || n != p.Stats().Segments {
			r.failf("Segments has %d elements, Stats %d segments; want %d", n, p.Stats().Segments, want)
		}
	})
}

// TestPoolStatsCountBytes checks the statistics of a pool with two buffers, and when both are
// freed.
func TestPoolStatsCountBytes(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.alloc(p, 1000), r.window(p, mib) // window also registers the pool's only segment
		const used = mib + 1024                    // sizes are rounded up to a multiple of 512
		const free = 4*mib - used                  // in the segment of 4 MiB
		want := symmem.PoolStats{
			Used: used, Requested: mib + 1000, HighWater: used,
			Cached: free, LargestFree: free, Segments: 1, Windows: 1,
			Events: 3, // the new segment and two allocations
		}
		if got := p.Stats(); got != want {
			r.failf("with two buffers: got %+v, want %+v", got, want)
		}

		r.ok(a.Free())
		r.ok(b.Free())
		want.Used, want.Requested, want.Cached, want.LargestFree = 0, 0, 4*mib, 4*mib
		want.Events += 2 // two frees
		if got := p.Stats(); got != want {
			r.failf("with both freed: got %+v, want %+v", got, want)
		}
	})
}

// TestInvalidSizes checks sizes that Alloc must refuse, and invalid options of pools.
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

// TestPoolCapacity fills a pool of limited size. The error of the next Alloc must contain the
// sizes, and memory that is freed must be usable again.
func TestPoolCapacity(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Capacity: 8 * mib, FirstSegment: 4 * mib})
		a := r.alloc(p, 4*mib)
		r.alloc(p, 3*mib)
		_, err := p.Alloc(2 * mib)
		var oom *symmem.OutOfMemoryError
		if !errors.As(err, &oom) || !errors.Is(err, symmem.ErrOutOfMemory) {
			r.failf("got %v, want an OutOfMemoryError", err)
		}

		if oom.Requested != 2*mib || oom.Free != mib || oom.Capacity != 8*mib {
			r.failf("got %+v, want 2 MiB requested, 1 MiB free, capacity 8 MiB", oom)
		}

		r.ok(a.Free())
		r.alloc(p, 2*mib)
	})
}

// TestTrimKeepsUsedAndRequestedMemory checks that Trim unmaps segments without buffers, but leaves
// as much memory mapped as the caller asks for. Trimmed segments must leave the groups.
func TestTrimKeepsUsedAndRequestedMemory(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		// Each of these buffers fills a segment: segments 0, 1 and 2.
		a, b := r.alloc(p, 4*mib), r.alloc(p, 4*mib)
		c := r.window(p, 8*mib) // also registers all segments
		r.ok(b.Free())
		r.ok(c.Free())
		r.ok(p.Trim(r.ctx, 8*mib)) // keeps a's segment and another one
		if got := p.Stats(); got.Segments != 2 || got.Windows != 2 || got.Used != 4*mib {
			r.failf("got %+v, want 2 segments, 2 windows and 4 MiB used", got)
		}

		r.checkSum(r.World(), a)
		r.ok(p.Trim(r.ctx, 0))
		if all := slices.Collect(p.Segments()); len(all) != 1 || all[0].Segment != a.Segment() {
			r.failf("got the segments %+v, want only %d", all, a.Segment())
		}

		// Ordinals are never reused, so new memory cannot be mistaken for old.
		d := r.alloc(p, 4*mib)
		if d.Segment() != 3 {
			r.failf("the new segment has ordinal %d, want 3", d.Segment())
		}

		r.checkSum(r.World(), d)
		newer := r.split(r.World(), 0) // its windows: the segments of a and d
		r.checkSum(newer, a)
		if n := newer.Stats().Windows; n != 2 {
			r.failf("a group created after Trim has %d windows, want 2", n)
		}
	})
}

// TestTrimOfSingleRankPool uses a pool without a domain, which belongs to one rank. Its Trim must
// not wait for other ranks.
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

// TestClosedPoolRejectsCalls checks that calls that use a closed pool or its memory fail, and that
// Free does not.
func TestClosedPoolRejectsCalls(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		r.ok(p.Close())
		r.ok(p.Close()) // a second Close does nothing
		if n := r.World().Stats().Windows; n != 0 {
			r.failf("%d windows after Close of the pool, want 0", n)
		}

		_, err := p.Alloc(512)
		r.wantErr(err, symmem.ErrClosed)
		r.wantErr(p.Reserve(r.ctx, 512, nil), symmem.ErrClosed)
		r.wantErr(r.sum(r.World(), b), symmem.ErrClosed)
		r.ok(b.Free()) // live buffers of a closed pool can still be freed
	})
}

// TestPoolLimitPerDomain creates pools of one domain until NewPool fails at the limit.
func TestPoolLimitPerDomain(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		const maxPools = 64 // all that an agreement of the ranks can compare
		for i := range maxPools {
			if _, err := r.NewPool(symmem.PoolOptions{Domain: r.World()}); err != nil {
				r.failf("pool %d of at most %d: %v", i+1, maxPools, err)
			}
		}

		_, err := r.NewPool(symmem.PoolOptions{Domain: r.World()})
		r.wantErr(err, symmem.ErrInvalid)
		r.ok(r.World().Check(r.ctx)) // works with all pools
	})
}

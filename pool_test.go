package symmem_test

import (
	"errors"
	"slices"
	"testing"

	"symmem"
)

// A pool maps memory in segments. In these tests, the first segment has 4 MiB. A window is a
// registered segment.

// A buffer has the same segment and offset on all ranks, although the addresses of segments differ.
func TestPlacementIsSameOnAllRanks(t *testing.T) {
	const ranks = 3
	const buffersPerRank = 200
	var placesByRank errorTexts
	runRanks(t, ranks, symmem.Options{Scatter: scatterSeed}, func(r *rank) {
		p := r.pool()
		var places []string
		var buffers []symmem.Buffer
		for i := range buffersPerRank {
			if i%3 == 2 {
				oldest := i / 3
				r.ok(buffers[oldest].Free())
			}

			const unit, sizes, stride = 512, 90, 7
			units := 1 + i*stride%sizes // all sizes, in mixed order
			b := r.alloc(p, int64(units*unit))
			buffers = append(buffers, b)
			places = append(places, place(b))
		}

		placesByRank.addText(r, join(places))
		r.ok(r.World().Check(r.ctx))
	})
	placesByRank.requireSame(t, ranks)
}

func (a *errorTexts) addText(r *rank, text string) { a.add(r, errors.New(text)) }

// Reserve also registers memory. A later scope has nothing to register at its end.
func TestReserve(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		r.ok(p.Reserve(r.ctx, 32*mib, r.World()))
		before := r.World().Stats()
		poolStats := p.Stats()
		if before.Windows == 0 || before.Windows != poolStats.Segments {
			r.failf("the group has %d windows, want one for each of the %d segments", before.Windows,
				poolStats.Segments)
		}

		if poolStats.Cached < 32*mib {
			r.failf("%d bytes of cached memory, want at least 32 MiB", poolStats.Cached)
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
			r.failf("Segments lists %d and Stats counts %d segments, want %d", listed, counted, want)
		}
	})
}

func TestPoolStatsCountBytes(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		const small, roundedSmall = 1000, 1024 // sizes are rounded up to multiples of 512
		a := r.alloc(p, small)
		b := r.window(p, mib) // registers the only segment
		const used = roundedSmall + mib
		const free = 4*mib - used
		want := symmem.PoolStats{
			Used: used, Requested: small + mib, HighWater: used,
			Cached: free, LargestFree: free, Segments: 1, Windows: 1,
			Events: 3, // one new segment and two allocations
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
		want.Events += 2 // the frees
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

		const unknownPlacement = 9
		for _, invalid := range []symmem.PoolOptions{
			{Capacity: -1}, {FirstSegment: -1}, {Placement: unknownPlacement},
		} {
			if _, err := r.NewPool(invalid); err == nil {
				r.failf("NewPool(%+v) succeeded, want an error", invalid)
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

// Trim deregisters and unmaps free segments, but keeps at least the given number of bytes mapped.
func TestTrimKeepsUsedAndRequestedMemory(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		// These buffers fill the segments 0, 1 and 2.
		kept := r.alloc(p, 4*mib)
		freed1 := r.alloc(p, 4*mib)
		freed2 := r.window(p, 8*mib) // registers all three segments
		r.ok(freed1.Free())
		r.ok(freed2.Free())
		r.ok(p.Trim(r.ctx, 8*mib)) // keeps kept and freed1
		if got := p.Stats(); got.Segments != 2 || got.Windows != 2 || got.Used != 4*mib {
			r.failf("got %+v, want 2 segments, 2 windows and 4 MiB used", got)
		}

		r.checkSum(r.World(), kept)
		r.ok(p.Trim(r.ctx, 0))
		if all := slices.Collect(p.Segments()); len(all) != 1 || all[0].Segment != kept.Segment() {
			r.failf("got the segments %+v, want only %d", all, kept.Segment())
		}

		added := r.alloc(p, 4*mib)
		const unusedNumber = 3 // 0, 1 and 2 are not reused
		if added.Segment() != unusedNumber {
			r.failf("the new segment has the number %d, want %d", added.Segment(), unusedNumber)
		}

		r.checkSum(r.World(), added)
		const color = 0 // of both ranks
		newGroup := r.split(r.World(), color)
		r.checkSum(newGroup, kept)
		if n := newGroup.Stats().Windows; n != 2 { // of kept and added
			r.failf("a group created after Trim has %d windows, want 2", n)
		}
	})
}

// A pool without a domain belongs to one rank, so Trim does not wait for others.
func TestTrimOfSingleRankPool(t *testing.T) {
	const trimmingRank = 0
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 2 * mib})
		if r.Rank() == trimmingRank {
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
		r.ok(p.Close()) // does nothing
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
		const maxPools = 64
		options := symmem.PoolOptions{Domain: r.World()}
		for range maxPools {
			r.poolWith(options)
		}

		_, err := r.NewPool(options)
		r.wantErr(err, symmem.ErrInvalid)
		r.ok(r.World().Check(r.ctx))
	})
}

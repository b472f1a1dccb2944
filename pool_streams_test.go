package symmem_test

import (
	"testing"

	"symmem"
)

// Streams share the segments of a pool. A stream that reuses memory of another stream first waits
// for unfinished work on that memory.

const moreThanDevice = 1 << 40 // bytes

func mappedBytes(stats symmem.PoolStats) int64 { return stats.Used + stats.Cached }

func TestStreamsShareSegments(t *testing.T) {
	const streams, segmentBytes = 40, 64 * mib
	const wantSegments = 2 // streams do not share spans of 2 MiB
	const wantMapped = wantSegments * segmentBytes
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: segmentBytes})
		var last symmem.Buffer
		for range streams {
			b, err := p.AllocOn(r.stream(), mib)
			r.ok(err)
			last = b
		}

		r.ok(p.Register(r.ctx, r.World()))
		stats := p.Stats()
		if mapped := mappedBytes(stats); mapped != wantMapped || stats.Segments != wantSegments {
			r.failf("buffers of 1 MiB on %d streams map %d bytes in %d segments, want %d in %d",
				streams, mapped, stats.Segments, wantMapped, wantSegments)
		}

		r.checkSum(r.World(), last)
	})
}

// After a stream is synchronized, other streams can reuse its free memory.
func TestSynchronizeSharesMemory(t *testing.T) {
	const streams = 10
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 8 * mib})
		for range streams {
			s := r.stream()
			b, err := p.AllocOn(s, 6*mib) // more than half of a segment
			r.ok(err)
			r.ok(s.Fill(b.Memory(), 1))
			r.ok(b.Free())
			r.ok(s.Synchronize(r.ctx))
		}

		if n := p.Stats().Segments; n != 1 {
			r.failf("%d successive streams map %d segments, want 1", streams, n)
		}

		r.ok(r.World().Check(r.ctx))
	})
}

// In a full pool, the default stream gets memory that was freed on a busy stream. All ranks choose
// the same offset, even if the stream is busy on only one rank.
func TestForeignFreeMemoryIsLastResort(t *testing.T) {
	const ranks = 2
	const busyRank, idleRank = 0, 1
	const otherByte, defaultByte = 7, 9 // arbitrary
	var placesOfReused errorTexts
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: 4 * mib, Capacity: 4 * mib,
		})
		other := r.stream()
		freed, err := p.AllocOn(other, 4*mib)
		r.ok(err)
		r.ok(p.Register(r.ctx, r.World()))
		release := r.hold(other)
		if r.Rank() == idleRank {
			release()
		}

		r.ok(other.Fill(freed.Memory(), otherByte))
		r.ok(freed.Free())
		reused := r.alloc(p, 2*mib)
		r.ok(r.DefaultStream().Fill(reused.Memory(), defaultByte))
		if r.Rank() == busyRank {
			release()
		}

		r.synchronize()
		contents := read[uint8](r, reused.Memory())
		first, last := contents[0], contents[len(contents)-1]
		if first != defaultByte || last != defaultByte {
			r.failf("got first byte %d and last byte %d, want %d: the other stream wrote last", first,
				last, defaultByte)
		}

		placesOfReused.addText(r, place(reused))
		r.ok(r.World().Check(r.ctx))
	})
	placesOfReused.requireSame(t, ranks)
}

// While a stream is capturing, no memory moves from one stream to another, because the graph would
// include the wait between the streams.
func TestCaptureAvoidsMemoryInUse(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib, Capacity: 4 * mib})
		other := r.stream()
		b, err := p.AllocOn(other, 4*mib)
		r.ok(err)
		r.ok(b.Free())
		for _, captured := range []*symmem.Stream{other, r.DefaultStream()} {
			r.ok(captured.BeginCapture())
			_, err = p.Alloc(mib) // on the default stream
			r.wantErr(err, symmem.ErrOutOfMemory)
			graph, err := captured.EndCapture()
			r.ok(err)
			r.ok(graph.Close())
		}

		r.alloc(p, mib)
	})
}

// After SetIdle(true), the owner of an adopted stream may destroy it, so the pool does not query
// it. Other streams do not get its freed memory until SetIdle(false).
func TestSetIdleProtectsMemoryOfAdoptedStreams(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib, Capacity: 4 * mib})
		adopted, err := r.Interop().AdoptStream(r.stream().Handle())
		r.ok(err)
		b, err := p.AllocOn(adopted, 4*mib)
		r.ok(err)
		r.ok(b.Free())
		r.Interop().SetIdle(true)
		_, err = p.Alloc(mib) // on the default stream
		r.wantErr(err, symmem.ErrOutOfMemory)
		r.Interop().SetIdle(false)
		r.alloc(p, mib)
		r.Interop().ForgetStream(adopted)
		r.alloc(p, mib)
	})
}

// In a full pool or on a full device, ReserveOn takes mapped memory without unfinished work.
func TestReserveTakesCleanMemory(t *testing.T) {
	for fullPart, o := range map[string]symmem.PoolOptions{
		"capacity": {FirstSegment: 8 * mib, Capacity: 8 * mib},
		"device":   {FirstSegment: moreThanDevice}, // maps all memory of the device
	} {
		t.Run(fullPart, func(t *testing.T) {
			runRanks(t, 1, symmem.Options{}, func(r *rank) {
				p := r.poolWith(o)
				r.alloc(p, mib)
				before := p.Stats()
				other := r.stream()
				half := mappedBytes(before) / 2
				r.ok(p.ReserveOn(r.ctx, other, half, nil))
				b, err := p.AllocOn(other, half)
				r.ok(err)
				r.ok(b.Free())
				hasCapacity := o.Capacity != 0 // a full device may still have room for a small segment
				if now := p.Stats(); hasCapacity && now.Segments != before.Segments {
					r.failf("%d segments after ReserveOn, want %d as before", now.Segments, before.Segments)
				}
			})
		})
	}
}

func TestSegmentShrinksWhenMappingFails(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: moreThanDevice})
		r.alloc(p, mib)
		if stats := p.Stats(); stats.Segments != 1 || mappedBytes(stats) >= moreThanDevice {
			r.failf("got %+v, want one segment smaller than 1 TiB", stats)
		}
	})
}

// Each capture uses a new stream, but the pool maps few segments.
func TestShortCapturesOnNewStreams(t *testing.T) {
	const captures = 1000
	const maxSegments, maxMapped = 6, (64 + 64 + 128 + 256 + 512 + 1024) * mib
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 64 * mib})
		for range captures {
			s := r.stream()
			r.ok(s.BeginCapture())
			b, err := p.AllocOn(s, mib)
			r.ok(err)
			m := b.Memory()
			const count = 100 // arbitrary
			r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, s))
			graph, err := s.EndCapture()
			r.ok(err)
			r.ok(b.Free())
			r.ok(graph.Close())
		}

		stats := p.Stats()
		mapped := mappedBytes(stats)
		r.t.Logf("%d captures map %d MiB in %d segments", captures, mapped/mib, stats.Segments)
		if mapped > maxMapped || stats.Segments > maxSegments {
			r.failf("%d captures map %d MiB in %d segments, want at most %d MiB in %d", captures,
				mapped/mib, stats.Segments, maxMapped/mib, maxSegments)
		}
	})
}

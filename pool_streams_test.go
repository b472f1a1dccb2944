package symmem_test

import (
	"errors"
	"testing"

	"symmem"
)

// Streams share the segments of a pool in units of 2 MiB. If a stream reuses memory that was freed
// on another stream, it first waits for unfinished work on that memory.

func mappedBytes(stats symmem.PoolStats) int64 { return stats.Used + stats.Cached }

func TestStreamsShareSegments(t *testing.T) {
	const streams = 40
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 64 * mib})
		var last symmem.Buffer
		for range streams {
			b, err := p.AllocOn(r.stream(), mib)
			r.ok(err)
			last = b
		}

		r.ok(p.Register(r.ctx, r.World()))
		// 40 streams with 2 MiB each need two segments of 64 MiB.
		n := p.Stats()
		if mapped := mappedBytes(n); mapped != 128*mib || n.Segments != 2 {
			r.failf("buffers of 1 MiB on %d streams map %d bytes in %d segments, want 128 MiB in 2",
				streams, mapped, n.Segments)
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
			b, err := p.AllocOn(s, 6*mib) // does not fit twice into a segment
			r.ok(err)
			r.ok(s.Fill(b.Memory(), 1))
			r.ok(b.Free())
			r.ok(s.Synchronize(r.ctx))
		}

		if n := p.Stats(); n.Segments != 1 {
			r.failf("%d successive streams map %d segments, want 1", streams, n.Segments)
		}

		r.ok(r.World().Check(r.ctx))
	})
}

// In a full pool, the default stream gets memory that was freed on a busy stream. The progress of
// the busy stream differs between the ranks, but the offset of the new buffer does not.
func TestForeignFreeMemoryIsLastResort(t *testing.T) {
	const ranks = 2
	const otherByte, defaultByte = 7, 9 // arbitrary
	var places errorTexts               // of the new buffer
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: 4 * mib, Capacity: 4 * mib,
		})
		other := r.stream()
		freed, err := p.AllocOn(other, 4*mib)
		r.ok(err)
		r.ok(p.Register(r.ctx, r.World()))
		release := r.hold(other) // blocks other
		if r.Rank() == 1 {
			release()
		}

		r.ok(other.Fill(freed.Memory(), otherByte))
		r.ok(freed.Free())
		reused := r.alloc(p, 2*mib)
		r.ok(r.DefaultStream().Fill(reused.Memory(), defaultByte))
		if r.Rank() == 0 {
			release()
		}

		r.synchronize()
		v := read[uint8](r, reused.Memory())
		first := v[0]
		last := v[len(v)-1]
		if first != defaultByte || last != defaultByte {
			r.failf("got first byte %d and last byte %d, want %d: the other stream wrote last", first,
				last, defaultByte)
		}

		places.add(r, errors.New(place(reused)))
		r.ok(r.World().Check(r.ctx))
	})
	places.requireSame(t, ranks)
}

// During a capture, a stream gets no memory that was freed on another stream, because the graph
// would include the wait for that stream.
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

// After SetIdle(true), the owner of an adopted stream may destroy it. The pool then cannot query
// the stream, so no other stream gets memory that was freed on it.
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

// When the pool or the device is full, ReserveOn takes mapped memory that no unfinished work uses.
func TestReserveTakesCleanMemory(t *testing.T) {
	const moreThanDevice = 1 << 39 // makes the pool map all memory of the device
	for fullPart, o := range map[string]symmem.PoolOptions{
		"capacity": {FirstSegment: 8 * mib, Capacity: 8 * mib},
		"device":   {FirstSegment: moreThanDevice},
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
				// A full device may still have room for another small segment.
				isPoolFull := o.Capacity > 0
				if now := p.Stats(); isPoolFull && now.Segments != before.Segments {
					r.failf("%d segments after ReserveOn, want %d as before", now.Segments, before.Segments)
				}
			})
		})
	}
}

func TestSegmentShrinksWhenMappingFails(t *testing.T) {
	const tebibyte = 1 << 40 // more than the device has
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: tebibyte})
		r.alloc(p, mib)
		if n := p.Stats(); n.Segments != 1 || mappedBytes(n) >= tebibyte {
			r.failf("got %+v, want one segment smaller than 1 TiB", n)
		}
	})
}

// Captures on 1000 new streams reuse memory.
func TestShortCapturesOnNewStreams(t *testing.T) {
	const captures = 1000
	const maxSegments, maxMapped = 6, 2048 * mib // 64, 64, 128, 256, 512 and 1024 MiB
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

		n := p.Stats()
		mapped := mappedBytes(n)
		r.t.Logf("%d captures map %d MiB in %d segments", captures, mapped/mib, n.Segments)
		if mapped > maxMapped || n.Segments > maxSegments {
			r.failf("%d captures map %d MiB in %d segments, want at most %d MiB in %d", captures,
				mapped/mib, n.Segments, maxMapped/mib, maxSegments)
		}
	})
}

package symmem_test

import (
	"errors"
	"testing"

	"symmem"
)

// A pool maps memory in segments, for example of 64 MiB. Buffers of several streams can share a
// segment: each stream owns parts of it, in multiples of 2 MiB. A stream can also get memory that
// was freed on another stream. If the other stream may still use the memory, the new owner must
// wait for the other's work.

// mappedBytes returns the size of all segments.
func mappedBytes(n symmem.PoolStats) int64 { return n.Used + n.Cached }

// TestStreamsShareSegments allocates a buffer on each of 40 streams. The pool must not map a
// segment for each stream.
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
		// Each stream owns 2 MiB. All need 80 MiB, which fit into two segments of 64 MiB.
		n := p.Stats()
		if mapped := mappedBytes(n); mapped != 128*mib || n.Segments != 2 {
			r.failf("buffers of 1 MiB on %d streams map %d bytes in %d segments, want 128 MiB in 2",
				streams, mapped, n.Segments)
		}

		r.checkSum(r.World(), last)
	})
}

// TestSynchronizeSharesMemory frees a buffer on each of ten streams and then synchronizes the
// stream. The next stream must get the same memory.
func TestSynchronizeSharesMemory(t *testing.T) {
	const streams = 10
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 8 * mib})
		for range streams {
			s := r.stream()
			b, err := p.AllocOn(s, 6*mib) // the segment has no room for a second one
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

// TestForeignFreeMemoryIsLastResort uses all memory of a pool on another stream, frees it, and
// allocates on the default stream. The pool must give the default stream this memory, even while
// the other stream is busy. The default stream must then wait on the device for the other's work.
//
// On rank 1, the other stream is idle early. On rank 0, it is busy until the end. The new buffer
// must have the same place on both ranks.
func TestForeignFreeMemoryIsLastResort(t *testing.T) {
	const ranks = 2
	const otherByte, defaultByte = 7, 9 // which the streams write into the memory
	var places errorTexts               // compares texts; an error carries the place on a rank
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: 4 * mib, Capacity: 4 * mib,
		})
		other := r.stream()
		freed, err := p.AllocOn(other, 4*mib)
		r.ok(err)
		r.ok(p.Register(r.ctx, r.World()))
		release := r.hold(other) // keeps other busy until release is called
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
			r.failf("got first byte %d and last byte %d, want %d: the other stream wrote last", first, last,
				defaultByte)
		}

		places.add(r, errors.New(place(reused)))
		r.ok(r.World().Check(r.ctx))
	})
	places.requireSame(t, ranks)
}

// TestCaptureAvoidsMemoryInUse captures a graph of one of two streams. During the capture, neither
// stream may get memory that was freed on the other, because the wait for the other's work would
// become part of the graph.
func TestCaptureAvoidsMemoryInUse(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib, Capacity: 4 * mib})
		other := r.stream()
		b, err := p.AllocOn(other, 4*mib)
		r.ok(err)
		r.ok(b.Free())
		for _, captured := range []*symmem.Stream{other, r.DefaultStream()} {
			r.ok(captured.BeginCapture())
			_, err = p.Alloc(mib) // for the default stream; all memory was freed on other
			r.wantErr(err, symmem.ErrOutOfMemory)
			graph, err := captured.EndCapture()
			r.ok(err)
			r.ok(graph.Close())
		}

		r.alloc(p, mib) // succeeds after the captures
	})
}

// TestSetIdleProtectsMemoryOfAdoptedStreams frees memory on an adopted stream: one that another
// library owns. After SetIdle(true), the library may destroy the stream. The pool must not query
// the stream then, so other streams must not get the memory.
func TestSetIdleProtectsMemoryOfAdoptedStreams(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib, Capacity: 4 * mib})
		adopted, err := r.Interop().AdoptStream(r.stream().Handle())
		r.ok(err)
		b, err := p.AllocOn(adopted, 4*mib)
		r.ok(err)
		r.ok(b.Free())
		r.Interop().SetIdle(true)
		_, err = p.Alloc(mib) // for the default stream
		r.wantErr(err, symmem.ErrOutOfMemory)
		r.Interop().SetIdle(false) // the pool may query the stream again
		r.alloc(p, mib)
		r.Interop().ForgetStream(adopted)
		r.alloc(p, mib) // still succeeds
	})
}

// TestReserveTakesCleanMemory reserves memory for another stream when the pool or the device is
// full. The pool must use free memory that it has already mapped and that no unfinished work uses.
func TestReserveTakesCleanMemory(t *testing.T) {
	const moreThanDevice = 1 << 39 // the pool then maps all memory that the device has
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
				// A full device may still have room for a smaller segment, unlike a full pool.
				isPoolFull := o.Capacity > 0
				if now := p.Stats(); isPoolFull && now.Segments != before.Segments {
					r.failf("%d segments after ReserveOn, want %d as before", now.Segments, before.Segments)
				}
			})
		})
	}
}

// TestSegmentShrinksWhenMappingFails asks for a segment that is larger than the device. The pool
// must map a smaller one.
func TestSegmentShrinksWhenMappingFails(t *testing.T) {
	const tebibyte = 1 << 40
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: tebibyte})
		r.alloc(p, mib)
		if n := p.Stats(); n.Segments != 1 || mappedBytes(n) >= tebibyte {
			r.failf("got %+v, want one segment smaller than 1 TiB", n)
		}
	})
}

// TestShortCapturesOnNewStreams captures a graph of one call on each of 1000 new streams, and
// closes it. The amount of mapped memory must stay limited.
func TestShortCapturesOnNewStreams(t *testing.T) {
	const captures = 1000
	const maxSegments = 6 // of 64, 64, 128, 256, 512 and 1024 MiB
	const maxMapped = 2048 * mib
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 64 * mib})
		for range captures {
			s := r.stream()
			r.ok(s.BeginCapture())
			b, err := p.AllocOn(s, mib)
			r.ok(err)
			m := b.Memory()
			const count = 100
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

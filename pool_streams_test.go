package symmem_test

import (
	"errors"
	"testing"

	"symmem"
)

// TestStreamsShareSegments checks that a pool does not map a segment for each stream.
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
		// Streams own memory in multiples of 2 MiB, so they need 80 MiB: two segments of 64 MiB.
		n := p.Stats()
		if mapped := n.Used + n.Cached; mapped != 128*mib || n.Segments != 2 {
			r.failf("buffers of 1 MiB on %d streams map %d bytes in %d segments, want 128 MiB in 2",
				streams, mapped, n.Segments)
		}

		r.checkSum(r.World(), last)
	})
}

// TestSynchronizeSharesMemory checks that, after a stream has been synchronized, other streams can
// use the memory that was freed on it.
func TestSynchronizeSharesMemory(t *testing.T) {
	const streams = 10
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 8 * mib})
		for range streams {
			s := r.stream()
			b, err := p.AllocOn(s, 6*mib) // no room for a second buffer in the segment
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

// TestForeignFreeMemoryIsLastResort uses all memory of a pool on one stream, frees it, and
// allocates on the default stream. The default stream must wait on the device for the work of the
// first. The place of the new buffer must not depend on when that work completes.
func TestForeignFreeMemoryIsLastResort(t *testing.T) {
	const oldByte, newByte = 7, 9
	var places errorTexts // compares texts; an error carries the place on a rank
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: 4 * mib, Capacity: 4 * mib,
		})
		other := r.stream()
		b, err := p.AllocOn(other, 4*mib)
		r.ok(err)
		r.ok(p.Register(r.ctx, r.World()))
		release := r.hold(other) // keeps other busy until release is called
		if r.Rank() == 1 {
			release() // on this rank, the other stream's work completes early
		}

		r.ok(other.Fill(b.Memory(), oldByte))
		r.ok(b.Free())
		reused := r.alloc(p, 2*mib)
		r.ok(r.DefaultStream().Fill(reused.Memory(), newByte))
		if r.Rank() == 0 {
			release()
		}

		r.synchronize()
		v := read[uint8](r, reused.Memory())
		if first, last := v[0], v[len(v)-1]; first != newByte || last != newByte {
			r.failf("first byte %d, last byte %d, want %d: the fill of the freed buffer ran last", first,
				last, newByte)
		}

		places.add(r, errors.New(place(reused)))
		r.ok(r.World().Check(r.ctx))
	})
	places.requireSame(t, 2)
}

// TestCaptureAvoidsMemoryInUse checks that no stream takes another stream's free memory while one
// of the two is being captured, because the wait for the memory would become part of the graph.
func TestCaptureAvoidsMemoryInUse(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib, Capacity: 4 * mib})
		other := r.stream()
		b, err := p.AllocOn(other, 4*mib)
		r.ok(err)
		r.ok(b.Free())
		// The free memory belongs to other, and Alloc is for the default stream.
		for _, s := range []*symmem.Stream{other, r.DefaultStream()} {
			r.ok(s.BeginCapture())
			_, err = p.Alloc(mib)
			r.wantErr(err, symmem.ErrOutOfMemory)
			graph, err := s.EndCapture()
			r.ok(err)
			r.ok(graph.Close())
		}

		r.alloc(p, mib) // succeeds without a capture
	})
}

// TestSetIdleProtectsMemoryOfAdoptedStreams frees memory on a stream that another library owns.
// After SetIdle(true), which promises that the library is idle, the pool must not query the stream.
// So it must not reuse the memory on other streams.
func TestSetIdleProtectsMemoryOfAdoptedStreams(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib, Capacity: 4 * mib})
		adopted, err := r.Interop().AdoptStream(r.stream().Handle())
		r.ok(err)
		b, err := p.AllocOn(adopted, 4*mib)
		r.ok(err)
		r.ok(b.Free())
		r.Interop().SetIdle(true)
		_, err = p.Alloc(mib)
		r.wantErr(err, symmem.ErrOutOfMemory)
		r.Interop().SetIdle(false)
		r.alloc(p, mib) // the pool may query the stream again
		r.Interop().ForgetStream(adopted)
		r.alloc(p, mib)
	})
}

// TestReserveTakesCleanMemory reserves memory when the pool or the device is full. The pool must
// take free memory of other streams that no unfinished work uses.
func TestReserveTakesCleanMemory(t *testing.T) {
	const moreThanDevice = 1 << 39 // the pool then maps all memory that the device has
	for name, o := range map[string]symmem.PoolOptions{
		"capacity": {FirstSegment: 8 * mib, Capacity: 8 * mib},
		"device":   {FirstSegment: moreThanDevice},
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 1, symmem.Options{}, func(r *rank) {
				p := r.poolWith(o)
				r.alloc(p, mib)
				before, other := p.Stats(), r.stream()
				bytes := (before.Used + before.Cached) / 2 // half of the mapped memory
				r.ok(p.ReserveOn(r.ctx, other, bytes, nil))
				b, err := p.AllocOn(other, bytes)
				r.ok(err)
				r.ok(b.Free())
				// A full device may still have room for a smaller segment, unlike a full pool.
				if now := p.Stats(); o.Capacity > 0 && now.Segments != before.Segments {
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
		if n := p.Stats(); n.Segments != 1 || n.Used+n.Cached >= tebibyte {
			r.failf("got %+v, want one segment smaller than 1 TiB", n)
		}
	})
}

// TestShortCapturesOnNewStreams checks that the amount of mapped memory does not depend on the
// number of streams with captures.
func TestShortCapturesOnNewStreams(t *testing.T) {
	const captures = 1000
	const maxMapped, maxSegments = 2048 * mib, 6 // 64 + 64 + 128 + 256 + 512 + 1024 MiB
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 64 * mib})
		for range captures {
			s := r.stream()
			r.ok(s.BeginCapture())
			b, err := p.AllocOn(s, mib)
			r.ok(err)
			m := b.Memory()
			r.ok(r.World().AllReduce(r.ctx, m, m, 100, symmem.Float32, symmem.Sum, s))
			graph, err := s.EndCapture()
			r.ok(err)
			r.ok(b.Free())
			r.ok(graph.Close())
		}

		n := p.Stats()
		mapped := n.Used + n.Cached
		r.t.Logf("%d captures map %d MiB in %d segments", captures, mapped/mib, n.Segments)
		if mapped > maxMapped || n.Segments > maxSegments {
			r.failf("%d captures map %d MiB in %d segments, want at most %d MiB in %d", captures,
				mapped/mib, n.Segments, maxMapped/mib, maxSegments)
		}
	})
}

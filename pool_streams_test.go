package symmem_test

import (
	"errors"
	"testing"

	"symmem"
)

// TestStreamsShareSegments checks that a pool does not map a segment for each stream.
func TestStreamsShareSegments(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 64 * mib})
		var last symmem.Buffer
		for range 40 {
			b, err := p.AllocOn(r.stream(), mib)
			r.ok(err)
			last = b
		}
		r.ok(p.Register(r.ctx, r.World()))
		if n := p.Stats(); n.Used+n.Cached != 128*mib || n.Segments != 2 {
			r.failf("buffers of 1 MiB on 40 streams map %d bytes in %d segments, want 128 MiB in 2",
				n.Used+n.Cached, n.Segments)
		}
		r.fill(last, float32(r.Rank()+1))
		r.checkSum(r.World(), last)
		r.checkAll(last, 3)
	})
}

// TestSynchronizeSharesMemory checks that, after a stream has been synchronized, other streams can
// use the memory that was freed on it.
func TestSynchronizeSharesMemory(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 8 * mib})
		for range 10 {
			s := r.stream()
			b, err := p.AllocOn(s, 6*mib)
			r.ok(err)
			r.ok(s.Fill(b.Memory(), 1))
			r.ok(b.Free())
			r.ok(s.Synchronize(r.ctx))
		}
		if n := p.Stats(); n.Segments != 1 {
			r.failf("10 successive streams map %d segments, want 1", n.Segments)
		}
		r.ok(r.World().Check(r.ctx))
	})
}

// TestForeignFreeMemoryIsLastResort uses all memory of a pool on one stream, frees it, and
// allocates on another stream, which must wait on the device for the work of the first.
func TestForeignFreeMemoryIsLastResort(t *testing.T) {
	var texts errorTexts
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: 4 * mib, Capacity: 4 * mib,
		})
		other := r.stream()
		b, err := p.AllocOn(other, 4*mib)
		r.ok(err)
		r.ok(p.Register(r.ctx, r.World()))
		release := r.hold(other)
		if r.Rank() == 1 {
			release() // on this rank, the other stream's work completes early
		}
		r.ok(other.Fill(b.Memory(), 7))
		r.ok(b.Free())
		reused := r.alloc(p, 2*mib)
		r.ok(r.DefaultStream().Fill(reused.Memory(), 9))
		if r.Rank() == 0 {
			release()
		}
		r.synchronize()
		v := read[uint8](r, reused.Memory())
		if first, last := v[0], v[len(v)-1]; first != 9 || last != 9 {
			r.failf("got elements %d and %d, want 9: the fill of the freed buffer ran last", first, last)
		}
		texts.add(r, errors.New(place(reused)))
		r.ok(r.World().Check(r.ctx))
	})
	texts.requireSame(t, 2)
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
		for _, s := range []*symmem.Stream{other, r.DefaultStream()} {
			r.ok(s.BeginCapture())
			_, err = p.Alloc(mib)
			r.wantErr(err, symmem.ErrOutOfMemory)
			graph, err := s.EndCapture()
			r.ok(err)
			r.ok(graph.Close())
		}
		r.alloc(p, mib)
	})
}

// TestSetIdleProtectsMemoryOfAdoptedStreams checks that an adopted stream's memory is not reused
// after SetIdle(true), because the pool would have to query the stream.
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
		r.alloc(p, mib)
		r.Interop().ForgetStream(adopted)
		r.alloc(p, mib)
	})
}

// TestReserveTakesCleanMemory reserves memory when the pool or the device is full. The pool must
// take free memory of other streams that no unfinished work uses.
func TestReserveTakesCleanMemory(t *testing.T) {
	for name, o := range map[string]symmem.PoolOptions{
		"capacity": {FirstSegment: 8 * mib, Capacity: 8 * mib},
		"device":   {FirstSegment: 1 << 39},
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 1, symmem.Options{}, func(r *rank) {
				p := r.poolWith(o)
				r.alloc(p, mib)
				mapped, other := p.Stats(), r.stream()
				bytes := (mapped.Used + mapped.Cached) / 2
				r.ok(p.ReserveOn(r.ctx, other, bytes, nil))
				b, err := p.AllocOn(other, bytes)
				r.ok(err)
				r.ok(b.Free())
				if now := p.Stats(); o.Capacity > 0 && now.Segments != mapped.Segments {
					r.failf("%d segments, want %d", now.Segments, mapped.Segments)
				}
			})
		})
	}
}

func TestSegmentShrinksWhenMappingFails(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 1 << 40})
		r.alloc(p, mib)
		if n := p.Stats(); n.Segments != 1 || n.Used+n.Cached >= 1<<40 {
			r.failf("got %+v, want one segment smaller than 1 TiB", n)
		}
	})
}

// TestShortCapturesOnNewStreams checks that the amount of mapped memory does not depend on the
// number of streams with captures.
func TestShortCapturesOnNewStreams(t *testing.T) {
	const captures = 1000
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
		r.t.Logf("%d captures map %d MiB in %d segments", captures, (n.Used+n.Cached)/mib, n.Segments)
		if n.Used+n.Cached > 2048*mib || n.Segments > 6 {
			r.failf("%d captures map %+v, want at most 2 GiB in 6 segments", captures, n)
		}
	})
}

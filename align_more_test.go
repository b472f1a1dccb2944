package symmem_test

import (
	"testing"

	"symmem"
)

// TestRealignmentRejectsConcurrentChange changes a pool during a realignment. After a fault, a
// realignment makes the pools of all ranks equal again. It first waits for all streams. If a buffer
// is freed or used meanwhile, the realignment must fail, because a stream may be using the buffer
// again. An allocation does not matter.
func TestRealignmentRejectsConcurrentChange(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.alloc(p, 4096), r.alloc(p, 4096)
		s, err := r.NewStream()
		r.ok(err)
		allocate := func() { r.alloc(p, 4096) }
		r.ok(symmem.InventoryAround(p, allocate)) // calls allocate in place of the wait
		for name, change := range map[string]func() error{
			"free": a.Free,
			"use":  func() error { return b.UseOn(s) },
		} {
			err := symmem.InventoryAround(p, func() { r.ok(change()) })
			if err == nil {
				r.failf("%s during a realignment: got no error, want one", name)
			}
		}

		doNothing := func() {}
		r.ok(symmem.InventoryAround(p, doNothing))
	})
}

// TestTrimWhileGraphPinsMemory trims a pool after a fault, while a graph of rank 0 uses a freed
// buffer. Trim must succeed on both ranks, and the world must remain usable.
func TestTrimWhileGraphPinsMemory(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		freed := r.window(p, 4096)
		g := r.split(r.World(), 0) // the group that fails
		var graph *symmem.Graph
		if r.Rank() == 0 {
			graph = r.capture(func(s *symmem.Stream) { r.ok(freed.UseOn(s)) })
		}

		r.ok(freed.Free())
		g.Abort()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		r.split(r.World(), 0) // realigns the pool
		for range 2 {         // the second Trim meets the memory as the first one has left it
			r.ok(p.Trim(r.ctx, 0))
			r.checkSum(r.World(), r.window(p, 4096))
		}

		if graph != nil {
			r.ok(graph.Close())
		}

		r.ok(r.World().Check(r.ctx))
	})
}

// TestReserveAfterFault reserves memory for a stream after a fault, while rank 0 has a segment more
// than rank 1. Other streams must not get the reserved memory. In the second case, rank 1 learns of
// the fault only during the reservation.
func TestReserveAfterFault(t *testing.T) {
	const size = 8 << 20 // of a segment, a buffer and the reservation
	for _, rank1MissesFault := range []bool{false, true} {
		capacity := int64(2 * size) // the reservation and another segment
		if rank1MissesFault {
			capacity += size // rank 1 reserves twice: the realignment drops its first reservation
		}

		runRanks(t, 2, symmem.Options{}, func(r *rank) {
			p, err := r.NewPool(symmem.PoolOptions{
				Domain: r.World(), FirstSegment: size, Capacity: capacity,
			})
			r.ok(err)
			a := r.window(p, size)
			g := r.split(r.World(), 0) // the group that fails
			if r.Rank() == 0 {
				b, err := p.Alloc(size) // in a new segment
				r.ok(err)
				r.ok(b.Free())
			}

			r.ok(a.Free())
			if r.Rank() == 0 || !rank1MissesFault {
				g.Abort()
				r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
			}

			s, err := r.NewStream()
			r.ok(err)
			r.ok(p.ReserveOn(r.ctx, s, size, r.World()))
			other, err := r.NewStream()
			r.ok(err)
			for err == nil { // use all memory that is not reserved
				_, err = p.AllocOn(other, size/2)
			}

			r.wantErr(err, symmem.ErrOutOfMemory) // of the first request that does not fit
			reserved, err := p.AllocOn(s, size)
			r.ok(err)
			r.checkSum(r.World(), reserved)
			r.ok(r.World().Check(r.ctx))
		})
	}
}

// TestCaptureDelaysRealignment calls Register after a fault, during a capture on rank 0. Pools
// cannot be realigned until the capture ends, so both ranks must get ErrCapturing.
func TestCaptureDelaysRealignment(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g := r.split(r.World(), 0) // the group that fails
		r.ok(a.Free())
		if r.Rank() == 0 {
			b, err := p.Alloc(1 << 20) // rank 1 does not allocate this buffer
			r.ok(err)
			r.ok(b.Free())
		}

		g.Abort()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		s, err := r.NewStream()
		r.ok(err)
		if r.Rank() == 0 {
			r.ok(s.BeginCapture())
		}

		g = r.split(r.World(), 0)
		for range 2 { // the first failure must not change the second call
			r.wantErr(p.Register(r.ctx, g), symmem.ErrCapturing)
		}

		if r.Rank() == 0 {
			graph, err := s.EndCapture()
			r.ok(err)
			r.ok(graph.Close())
		}

		// Agree makes rank 1 wait until rank 0 has ended the capture.
		r.ok(r.World().Agree(r.ctx, "the capture has ended", 1))
		r.ok(p.Register(r.ctx, g))
		r.checkSum(g, r.window(p, 4096))
		r.ok(r.World().Check(r.ctx))
	})
}

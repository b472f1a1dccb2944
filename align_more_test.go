package symmem_test

import (
	"testing"

	"symmem"
)

// All ranks must make the same requests to a pool, so that equal requests get memory at equal
// offsets. A fault, an error that ends a group, can stop ranks at different requests. For example,
// rank 0 has still allocated 8 MiB, and rank 1 has not. So the ranks realign the pool after a
// fault: they give it the same layout on all ranks. They do this in a later call that compares the
// pool, such as Register, Reserve or Trim.

// abortGroup makes a group of all ranks fail on each rank that calls it.
func abortGroup(r *rank, g *symmem.Group) {
	r.t.Helper()
	g.Abort()
	r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
}

// TestRealignmentRejectsConcurrentChange changes a pool while a realignment waits for the work on
// all streams. If a buffer is freed or used meanwhile, the realignment must fail, because a stream
// may then be using the buffer again. An allocation does not matter.
func TestRealignmentRejectsConcurrentChange(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a := r.alloc(p, 4096)
		b := r.alloc(p, 4096)
		s, err := r.NewStream()
		r.ok(err)
		// InventoryAround is the part of a realignment around the wait. It calls a function of the test
		// in place of the wait.
		allocate := func() { r.alloc(p, 4096) }
		r.ok(symmem.InventoryAround(p, allocate))
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

// TestTrimWhileGraphPinsMemory trims a pool after a fault, while a graph of rank 0 contains work on
// a freed buffer. Trim must succeed on both ranks, and the world must remain usable.
func TestTrimWhileGraphPinsMemory(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		freed := r.window(p, 4096)
		g := r.split(r.World(), 0)
		var graph *symmem.Graph // nil on rank 1
		if r.Rank() == 0 {
			graph = r.capture(func(s *symmem.Stream) { r.ok(freed.UseOn(s)) })
		}

		r.ok(freed.Free())
		abortGroup(r, g)
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

// TestReserveAfterFault reserves memory for a stream after a fault, when rank 0 has one segment (a
// part of a pool's memory) more than rank 1. Requests on other streams must not get the reserved
// memory. In the second case, rank 1 learns of the fault only during the reservation.
func TestReserveAfterFault(t *testing.T) {
	for _, rank1MissesFault := range []bool{false, true} {
		checkReserveAfterFault(t, rank1MissesFault)
	}
}

// checkReserveAfterFault is one case of TestReserveAfterFault.
func checkReserveAfterFault(t *testing.T, rank1MissesFault bool) {
	t.Helper()
	const size = 8 << 20        // bytes of a segment, of a buffer and of the reservation
	capacity := int64(2 * size) // the reservation and another segment
	if rank1MissesFault {
		capacity += size // rank 1 reserves twice: the realignment drops its first reservation
	}

	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: size, Capacity: capacity,
		})
		a := r.window(p, size)
		g := r.split(r.World(), 0)
		if r.Rank() == 0 {
			inNewSegment := r.alloc(p, size)
			r.ok(inNewSegment.Free())
		}

		r.ok(a.Free())
		if r.Rank() == 0 || !rank1MissesFault {
			abortGroup(r, g)
		}

		s, err := r.NewStream()
		r.ok(err)
		r.ok(p.ReserveOn(r.ctx, s, size, r.World()))
		useUnreserved(r, p, size/2)
		reserved, err := p.AllocOn(s, size)
		r.ok(err)
		r.checkSum(r.World(), reserved)
		r.ok(r.World().Check(r.ctx))
	})
}

// useUnreserved allocates buffers on a new stream until a request does not fit. The pool then has
// only the memory that is reserved for another stream.
func useUnreserved(r *rank, p *symmem.Pool, bytes int64) {
	r.t.Helper()
	s, err := r.NewStream()
	r.ok(err)
	for err == nil {
		_, err = p.AllocOn(s, bytes)
	}

	r.wantErr(err, symmem.ErrOutOfMemory)
}

// TestCaptureDelaysRealignment registers a pool after a fault, during a capture on rank 0. The pool
// cannot be realigned until the capture ends, so both ranks must get ErrCapturing until then.
func TestCaptureDelaysRealignment(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g := r.split(r.World(), 0)
		r.ok(a.Free())
		if r.Rank() == 0 {
			onlyHere := r.alloc(p, mib)
			r.ok(onlyHere.Free())
		}

		abortGroup(r, g)
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

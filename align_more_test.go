package symmem_test

import (
	"testing"

	"symmem"
)

// TestRealignmentRejectsConcurrentChange changes a pool after a realignment has waited for all
// streams. If the change frees or uses a buffer, the realignment must fail, because a stream may
// be using the buffer again. An allocation does not matter.
func TestRealignmentRejectsConcurrentChange(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.alloc(p, 4096), r.alloc(p, 4096)
		s, err := r.NewStream()
		r.ok(err)
		r.ok(symmem.InventoryAround(p, func() { r.alloc(p, 4096) }))
		for name, change := range map[string]func() error{
			"free": a.Free,
			"use":  func() error { return b.UseOn(s) },
		} {
			if err := symmem.InventoryAround(p, func() { r.ok(change()) }); err == nil {
				r.failf("%s during a realignment: got no error, want one", name)
			}
		}
		doNothing := func() {}
		r.ok(symmem.InventoryAround(p, doNothing))
	})
}

// TestTrimWhileGraphPinsMemory trims a pool after a fault, while a graph of rank 0 uses a buffer
// that was freed before the realignment.
func TestTrimWhileGraphPinsMemory(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		freed := r.window(p, 4096)
		g := r.split(r.World(), 0)
		var graph *symmem.Graph
		if r.Rank() == 0 {
			graph = r.capture(func(s *symmem.Stream) { r.ok(freed.UseOn(s)) })
		}
		r.ok(freed.Free())
		g.Abort()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		r.split(r.World(), 0) // realigns the pool
		for range 2 {
			r.ok(p.Trim(r.ctx, 0))
			r.checkSum(r.World(), r.window(p, 4096))
		}
		if graph != nil {
			r.ok(graph.Close())
		}
		r.ok(r.World().Check(r.ctx))
	})
}

// TestReserveAfterFault reserves memory for a stream after a fault, while the ranks' pools have
// different segments. Other streams must not get the reserved memory.
func TestReserveAfterFault(t *testing.T) {
	const size = 8 << 20
	for _, rank1MissesFault := range []bool{false, true} {
		capacity := int64(2 * size)
		if rank1MissesFault {
			capacity += size // the realignment drops rank 1's first reservation
		}
		runRanks(t, 2, symmem.Options{}, func(r *rank) {
			p, err := r.NewPool(symmem.PoolOptions{
				Domain: r.World(), FirstSegment: size, Capacity: capacity,
			})
			r.ok(err)
			a := r.window(p, size)
			g := r.split(r.World(), 0)
			if r.Rank() == 0 {
				b, err := p.Alloc(size)
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
			r.wantErr(err, symmem.ErrOutOfMemory)
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
		g := r.split(r.World(), 0)
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
		for range 2 {
			r.wantErr(p.Register(r.ctx, g), symmem.ErrCapturing)
		}
		if r.Rank() == 0 {
			graph, err := s.EndCapture()
			r.ok(err)
			r.ok(graph.Close())
		}
		r.ok(r.World().Agree(r.ctx, "the capture has ended", 1))
		r.ok(p.Register(r.ctx, g))
		r.checkSum(g, r.window(p, 4096))
		r.ok(r.World().Check(r.ctx))
	})
}

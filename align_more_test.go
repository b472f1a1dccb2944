package symmem_test

import (
	"slices"
	"testing"

	"symmem"
)

// A fault can leave a pool with different layouts on the ranks. The next call that compares the
// layouts, such as Register, realigns the pool: it makes the layouts equal again.

func abortGroup(r *rank, g *symmem.Group) {
	r.t.Helper()
	g.Abort()
	r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
}

// A realignment waits for the work on all streams. Meanwhile, a buffer may be allocated, but not
// freed or used.
func TestRealignmentRejectsConcurrentChange(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		freed := r.alloc(p, 4096)
		used := r.alloc(p, 4096)
		s, err := r.NewStream()
		r.ok(err)
		// InventoryAround realigns the pool and calls a function in place of the wait.
		allocate := func() { r.alloc(p, 4096) }
		r.ok(symmem.InventoryAround(p, allocate))
		for name, change := range map[string]func() error{
			"free": freed.Free,
			"use":  func() error { return used.UseOn(s) },
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

// After a fault, Trim succeeds although a graph of one rank still uses a freed buffer.
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

// A reservation keeps its memory from other streams even if it has to realign the pool first.
func TestReserveAfterFault(t *testing.T) {
	for _, c := range []reserveCase{
		{abortingRanks: []int{0, 1}, segments: 2}, // one segment is reserved, the other is not
		{abortingRanks: []int{0}, segments: 3},    // rank 1 reserves again after the realignment
	} {
		checkReserveAfterFault(t, c)
	}
}

type reserveCase struct {
	abortingRanks []int
	segments      int64 // the capacity of the pool
}

func checkReserveAfterFault(t *testing.T, c reserveCase) {
	t.Helper()
	const segmentBytes = 8 * mib
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: segmentBytes, Capacity: c.segments * segmentBytes,
		})
		a := r.window(p, segmentBytes)
		g := r.split(r.World(), 0)
		changeLayoutOnRank0(r, p, segmentBytes)
		r.ok(a.Free())
		if slices.Contains(c.abortingRanks, r.Rank()) {
			abortGroup(r, g)
		}

		s, err := r.NewStream()
		r.ok(err)
		r.ok(p.ReserveOn(r.ctx, s, segmentBytes, r.World()))
		exhaustUnreserved(r, p, segmentBytes/2)
		reserved, err := p.AllocOn(s, segmentBytes)
		r.ok(err)
		r.checkSum(r.World(), reserved)
		r.ok(r.World().Check(r.ctx))
	})
}

func changeLayoutOnRank0(r *rank, p *symmem.Pool, bytes int64) {
	r.t.Helper()
	if r.Rank() == 0 {
		onlyHere := r.alloc(p, bytes)
		r.ok(onlyHere.Free())
	}
}

// exhaustUnreserved allocates blocks of the given size until only reserved memory is left.
func exhaustUnreserved(r *rank, p *symmem.Pool, bytes int64) {
	r.t.Helper()
	s, err := r.NewStream()
	r.ok(err)
	for err == nil {
		_, err = p.AllocOn(s, bytes)
	}

	r.wantErr(err, symmem.ErrOutOfMemory)
}

// No rank can realign a pool while rank 0 captures a stream.
func TestCaptureDelaysRealignment(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a := r.window(p, 4096)
		g := r.split(r.World(), 0)
		r.ok(a.Free())
		changeLayoutOnRank0(r, p, mib)
		abortGroup(r, g)
		s, err := r.NewStream()
		r.ok(err)
		if r.Rank() == 0 {
			r.ok(s.BeginCapture())
		}

		g = r.split(r.World(), 0)
		for range 2 { // a retry fails in the same way
			r.wantErr(p.Register(r.ctx, g), symmem.ErrCapturing)
		}

		if r.Rank() == 0 {
			graph, err := s.EndCapture()
			r.ok(err)
			r.ok(graph.Close())
		}

		// Rank 1 waits here until rank 0 has ended the capture.
		r.ok(r.World().Agree(r.ctx, "the capture has ended", 1))
		r.ok(p.Register(r.ctx, g))
		r.checkSum(g, r.window(p, 4096))
		r.ok(r.World().Check(r.ctx))
	})
}

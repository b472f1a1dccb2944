package symmem_test

import (
	"testing"

	"symmem"
)

func TestCachedPlanRejectsFreedBuffer(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, 4096)
		m := b.Memory()
		call := func() error {
			return r.World().AllReduce(r.ctx, m, m, 2, symmem.Float32, symmem.Sum, nil)
		}
		r.ok(call())
		r.ok(r.alloc(p, 512).Free())
		r.ok(call())
		r.ok(b.Free())
		r.wantErr(call(), symmem.ErrFreed)
	})
}

func TestOverlappingBuffers(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		all := r.alloc(r.pool(), 4096).Memory()
		part := func(offset, bytes int64) symmem.Memory {
			m, err := all.Slice(offset, bytes)
			r.ok(err)
			return m
		}
		w, own := r.World(), int64(r.Rank())*400
		r.wantErr(w.AllReduce(r.ctx, part(0, 400), part(4, 400), 100, symmem.Float32, symmem.Sum, nil),
			symmem.ErrInvalid)
		r.wantErr(w.AllGather(r.ctx, part(8, 400), part(0, 800), 100, symmem.Float32, nil),
			symmem.ErrInvalid)
		for root := range r.Size() { // ranks other than root do not use both buffers
			r.wantErr(
				w.Reduce(r.ctx, part(0, 400), part(4, 400), 100, symmem.Float32, symmem.Sum, root, nil),
				symmem.ErrInvalid)
			r.wantErr(
				w.Broadcast(r.ctx, part(4, 400), part(0, 400), 100, symmem.Float32, root, nil),
				symmem.ErrInvalid)
		}

		r.ok(w.AllGather(r.ctx, part(own, 400), part(0, 800), 100, symmem.Float32, nil))
		r.ok(w.ReduceScatter(
			r.ctx, part(0, 800), part(own, 400), 100, symmem.Float32, symmem.Sum, nil))
		nowhere := r.memoryAt(0, 8)
		r.wantErr(w.AllReduce(r.ctx, nowhere, nowhere, 2, symmem.Float32,
			symmem.Sum, nil), symmem.ErrInvalid)
		r.synchronize()
	})
}

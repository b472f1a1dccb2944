package symmem_test

import (
	"testing"

	"symmem"
)

// TestCallEntersPoolOnce closes a pool during a call that has entered the pool (has been counted
// as a user of it) and still needs it. The call must complete, because other ranks may have begun
// the same call.
func TestCallEntersPoolOnce(t *testing.T) {
	for name, call := range map[string]func(*rank, *symmem.Pool) error{
		"Reserve": func(r *rank, p *symmem.Pool) error {
			return p.Reserve(r.ctx, mib, r.World())
		},
		"AdoptedCommunicator.Register": func(r *rank, p *symmem.Pool) error {
			return symmem.AdoptFake(r.World()).Register(r.ctx, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				p := r.pool()
				r.ok(r.alloc(p, mib).Free())
				r.ok(symmem.CloseDuring(p, func() error { return call(r, p) }))
				r.ok(p.Close())
			})
		})
	}
}

// TestCollectiveRealignsClosingPool runs a collective after a fault. The receive buffer is older
// than the fault, so the call begins to use the pool without realigning it. The send buffer is
// given by its address, so the call realigns the pool only later, when it looks up the windows of
// that buffer.
func TestCollectiveRealignsClosingPool(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if !r.Device().Addressable {
			r.skip("the test needs a Go slice of a buffer", symmem.ErrUnsupported)
		}

		p := r.pool()
		recv := r.window(p, 4096)
		g := r.split(r.World(), 0)
		g.Abort()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		send, err := symmem.View[float32](r.alloc(p, 4096))
		r.ok(err)
		r.ok(symmem.CloseDuring(p, func() error {
			return r.World().AllReduce(r.ctx, symmem.Host(send), recv.Memory(), 1024, symmem.Float32,
				symmem.Sum, nil)
		}))
		r.synchronize()
	})
}

// TestNormEntersPoolOnce begins a norm whose four buffers are in one pool, which closes after the
// call has entered it for the input and the output.
func TestNormEntersPoolOnce(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		b := r.alloc(r.pool(), mib).Memory()
		norm := symmem.NormArgs{Input: b, Output: b, Residual: b, Weight: b}
		r.ok(symmem.CloseBetween(norm))
	})
}

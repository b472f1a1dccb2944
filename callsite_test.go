package symmem_test

import (
	"errors"
	"testing"

	"symmem"
)

// TestCallWithoutSiteHasNone causes a divergence in a call without a call site. The error must
// not name the call site of an earlier call.
func TestCallWithoutSiteHasNone(t *testing.T) {
	call := func(count int64, m symmem.Memory) symmem.Call {
		return symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.Sum, Count: count,
			Send: m, Recv: m,
		}
	}
	for name, diverge := range map[string]func(r *rank, count int64, m symmem.Memory) error{
		"binding": func(r *rank, count int64, m symmem.Memory) error {
			return r.Interop().At(0).Do(r.ctx, r.World(), call(count, m), nil)
		},
		"Go": func(r *rank, count int64, m symmem.Memory) error {
			return r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{Check: symmem.CheckEvery}, func(r *rank) {
				m, s, binding := r.unregistered(8), r.DefaultStream(), r.Interop()
				binding = binding.At(binding.Site("model.py:1"))
				r.ok(errors.Join(binding.Do(r.ctx, r.World(), call(1, m), nil), s.Synchronize(r.ctx)))
				d := r.wantDivergence(errors.Join(diverge(r, int64(1+r.Rank()), m), s.Synchronize(r.ctx)))
				for _, side := range d.Sides {
					if side.Site != "" {
						r.failf("got site %q for a call without one, want none", side.Site)
					}
				}
			})
		})
	}
}

package symmem_test

import (
	"fmt"
	"testing"

	"symmem"
)

// TestMemoryMappedDuringCapture captures calls on memory that a pool maps during the capture and
// therefore cannot register. The calls must take the path for memory outside windows and compute
// the right sums. Either symmem or another library begins the capture.
func TestMemoryMappedDuringCapture(t *testing.T) {
	for _, choice := range []symmem.PathChoice{symmem.PathAuto, symmem.PathDirect, symmem.PathPlain} {
		for _, bytes := range []int64{4 << 10, mib, 10 * mib} {
			t.Run(fmt.Sprintf("%v/%d", choice, bytes), func(t *testing.T) {
				runRanks(t, 2, symmem.Options{Path: choice}, func(r *rank) {
					for _, foreign := range []bool{false, true} {
						for _, reserved := range []bool{false, true} {
							r.growInCapture(choice, bytes, foreign, reserved)
						}
					}
				})
			})
		}
	}
}

// growInCapture captures an all-reduce. Unless memory is reserved, the pool maps new memory for it.
func (r *rank) growInCapture(choice symmem.PathChoice, bytes int64, foreign, reserved bool) {
	if foreign && r.Device().Addressable {
		return // no other library captures on the host
	}

	ordinary := r.alloc(r.poolWith(symmem.PoolOptions{}), bytes)
	count := bytes / 4
	p := r.pool()
	owner := r.stream()
	stream := owner
	if foreign {
		s, err := r.Interop().AdoptStream(owner.Handle())
		r.ok(err)
		defer r.Interop().ForgetStream(s)
		stream = s
	}

	if reserved {
		r.ok(p.Reserve(r.ctx, 2*bytes, r.World()))
	}

	r.ok(owner.BeginCapture())
	m := r.memoryAt(ordinary.Memory().Address(), bytes)
	e, err := r.World().Explain(symmem.OpAllReduce, m, m, count, symmem.Float32)
	r.ok(err)
	before := r.World().Stats().Paths
	b := r.alloc(p, bytes)
	m = b.Memory()
	r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, stream))
	graph, err := owner.EndCapture()
	r.ok(err)
	r.fill(b, float32(r.Rank()+1))
	r.ok(graph.Launch(owner))
	r.ok(owner.Synchronize(r.ctx))
	r.checkAll(b, 3)
	r.ok(graph.Close())
	if e.Path != "direct" && choice == symmem.PathDirect && bytes <= mib && !r.Device().Addressable {
		r.failf("Explain of unregistered memory = %v, want the direct path", e)
	}

	for path, n := range r.World().Stats().Paths {
		if !reserved && n != before[path] && path != e.Path {
			r.failf("the captured call took the %s path, want %v", path, e)
		}
	}
}

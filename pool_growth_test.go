package symmem_test

import (
	"fmt"
	"testing"

	"symmem"
)

// TestMemoryMappedDuringCaptureTakesAllPaths captures, by our own graphs and by
// another library's, calls on memory that a pool has made meanwhile and could not register: they
// take the path that memory outside of pools takes, and are right.
func TestMemoryMappedDuringCaptureTakesAllPaths(t *testing.T) {
	for _, choice := range []symmem.PathChoice{symmem.PathAuto, symmem.PathDirect, symmem.PathPlain} {
		for _, bytes := range []int64{4 << 10, mib, 10 * mib} {
			t.Run(fmt.Sprintf("%v/%d", choice, bytes), func(t *testing.T) {
				runRanks(t, 2, symmem.Options{Path: choice}, func(r *rank) {
					for _, theirs := range []bool{false, true} {
						for _, reserved := range []bool{false, true} {
							r.growInACapture(choice, bytes, theirs, reserved)
						}
					}
				})
			})
		}
	}
}

// growInACapture captures a sum over memory that has to be made for it, unless it is reserved.
func (r *rank) growInACapture(choice symmem.PathChoice, bytes int64, theirs, reserved bool) {
	if theirs && r.Device().Addressable {
		return // no other library captures here
	}
	ordinary := r.alloc(r.poolWith(symmem.PoolOptions{}), bytes)
	count := bytes / 4
	p := r.pool()
	owner := r.stream()
	on := owner
	if theirs {
		s, err := r.Interop().AdoptStream(owner.Handle())
		r.ok(err)
		defer r.Interop().ForgetStream(s)
		on = s
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
	r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, on))
	graph, err := owner.EndCapture()
	r.ok(err)
	r.fill(b, float32(r.Rank()+1))
	r.ok(graph.Launch(owner))
	r.ok(owner.Synchronize(r.ctx))
	r.checkAll(b, 3)
	r.ok(graph.Close())
	if e.Path != "direct" && choice == symmem.PathDirect && bytes <= mib && !r.Device().Addressable {
		r.failf("ordinary memory does not go direct: %v", e)
	}
	for path, n := range r.World().Stats().Paths {
		if !reserved && n != before[path] && path != e.Path {
			r.failf("captured on the %s path: ordinary memory takes: %v", path, e)
		}
	}
}

package symmem_test

import (
	"testing"

	"symmem"
)

func TestGroupHandlesAreUnique(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		world, second := r.World().Handle(), g.Handle()
		if r.Device().Addressable {
			if world != 0 || second != 0 {
				r.failf("got handles %#x and %#x, want 0", world, second)
			}
		} else if world == 0 || second == 0 || world == second || r.World().Handle() != world {
			r.failf("got handles %#x and %#x, want two different, stable ones", world, second)
		}
		r.ok(g.Close())
		if handle := g.Handle(); handle != 0 {
			r.failf("Handle() = %#x for a closed group, want 0", handle)
		}
	})
}

func TestFailedGroupHasNoHandle(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		g.Abort()
		<-g.Ended()
		if handle := g.Handle(); handle != 0 {
			r.failf("Handle() = %#x for a failed group, want 0", handle)
		}
	})
}

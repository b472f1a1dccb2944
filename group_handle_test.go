package symmem_test

import (
	"errors"
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

// TestWindowHandles looks up NCCL's windows of two buffers in one segment.
func TestWindowHandles(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p, interop := r.pool(), r.Runtime.Interop()
		first, second := r.alloc(p, 4096), r.alloc(p, 4096)
		if _, _, err := interop.WindowHandle(r.World(), first.Address(), 8); !errors.Is(
			err, symmem.ErrInvalid) {
			r.failf("WindowHandle before the registration = %v, want ErrInvalid", err)
		}

		r.ok(p.Register(r.ctx, r.World()))
		window, offset, err := interop.WindowHandle(r.World(), first.Address(), 4096)
		if r.Device().Addressable {
			if !errors.Is(err, symmem.ErrUnsupported) {
				r.failf("WindowHandle on the host backend = %v, want ErrUnsupported", err)
			}

			return
		}

		r.ok(err)
		other, otherOffset, err := interop.WindowHandle(r.World(), second.Address()+64, 8)
		r.ok(err)
		if window == 0 || other != window ||
			otherOffset-offset != second.Address()+64-first.Address() {
			r.failf("got window %#x at %d and %#x at %d, want the same window, and offsets that differ "+
				"like the addresses", window, offset, other, otherOffset)
		}

		g := r.split(r.World(), 0)
		r.ok(p.Register(r.ctx, g))
		if another, _, err := interop.WindowHandle(g, first.Address(), 8); err != nil ||
			another == window {
			r.failf("got window %#x in another group, %v, want another one", another, err)
		}

		r.ok(g.Close())
	})
}

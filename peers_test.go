package symmem_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"symmem"
)

func wordAt(address uintptr) *uint64 { return *(**uint64)(unsafe.Pointer(&address)) }

func TestPeerAddressesReachEveryRank(t *testing.T) {
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		r.requireAddressable()
		p := r.pool()
		first, err := p.Alloc(mib)
		r.ok(err)
		b, err := p.Alloc(4096)
		r.ok(err)
		if _, err := b.PeerAddresses(r.World()); !errors.Is(err, symmem.ErrInvalid) {
			r.failf("PeerAddresses before the registration = %v; want ErrInvalid", err)
		}
		r.ok(p.Register(r.ctx, r.World()))
		addresses, err := b.PeerAddresses(r.World())
		r.skipUnsupported(err)
		r.ok(err)
		if len(addresses) != 3 || addresses[r.Rank()] != b.Address() {
			r.failf("PeerAddresses = %#x; want 3 addresses, with %#x for rank %d", addresses,
				b.Address(), r.Rank())
		}
		for _, address := range addresses { // write a word into every rank's buffer
			*wordAt(address + uintptr(8*r.Rank())) = uint64(100 + r.Rank())
		}
		r.ok(r.World().Barrier(r.ctx, nil))
		r.synchronize()
		for peer := range 3 {
			if got := *wordAt(b.Address() + uintptr(8*peer)); got != uint64(100+peer) {
				r.failf("the word of rank %d = %d; want %d", peer, got, 100+peer)
			}
		}
		inner, err := r.Runtime.Interop().PeerAddresses(r.World(), b.Address()+64, 8)
		r.ok(err)
		for peer := range 3 {
			if inner[peer] != addresses[peer]+64 {
				r.failf("address of rank %d = %#x; want %#x", peer, inner[peer], addresses[peer]+64)
			}
		}
		r.ok(b.Free())
		r.ok(first.Free())
	})
}

func TestInvalidPeerAddresses(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		if _, err := (symmem.Buffer{}).PeerAddresses(r.World()); !errors.Is(err, symmem.ErrForeign) {
			r.failf("PeerAddresses of the zero buffer = %v; want ErrForeign", err)
		}
		b, err := r.pool().Alloc(8)
		r.ok(err)
		if _, err := b.PeerAddresses(nil); !errors.Is(err, symmem.ErrInvalid) {
			r.failf("PeerAddresses in a nil group = %v; want ErrInvalid", err)
		}
		r.ok(b.Free())
	})
}

func TestPeerAddressesOfSuspendedPool(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		p := r.pool()
		b := r.window(p, 4096)
		want, err := b.PeerAddresses(r.World())
		if errors.Is(err, symmem.ErrUnsupported) {
			return
		}
		r.ok(err)
		r.suspend(p, symmem.DiscardContents)
		_, err = b.PeerAddresses(r.World())
		_, rawErr := r.Runtime.Interop().PeerAddresses(r.World(), b.Address(), 8)
		for _, err := range []error{err, rawErr} {
			if !errors.Is(err, symmem.ErrSuspended) || !strings.Contains(err.Error(), "Pool.Resume") {
				r.failf("PeerAddresses = %v, want ErrSuspended with the advice to call Pool.Resume", err)
			}
		}
		r.resume(p)
		if got, err := b.PeerAddresses(r.World()); err != nil || !slices.Equal(got, want) {
			r.failf("PeerAddresses after Resume = %#x, %v, want %#x", got, err, want)
		}
	})
}

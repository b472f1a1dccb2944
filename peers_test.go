package symmem_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"symmem"
)

// wordAt converts an address to a pointer. The indirection avoids a warning of go vet.
func wordAt(address uintptr) *uint64 { return *(**uint64)(unsafe.Pointer(&address)) }

func TestPeerAddressesReachEveryRank(t *testing.T) {
	const ranks, wordBytes = 3, 8
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		r.requireAddressable()
		p := r.pool()
		first, err := p.Alloc(mib) // so that b does not begin at offset 0
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
		if len(addresses) != ranks || addresses[r.Rank()] != b.Address() {
			r.failf("PeerAddresses = %#x; want %d addresses, with %#x for rank %d", addresses, ranks,
				b.Address(), r.Rank())
		}
		for _, address := range addresses { // write a word into every rank's buffer
			*wordAt(address + uintptr(wordBytes*r.Rank())) = uint64(100 + r.Rank())
		}
		r.ok(r.World().Barrier(r.ctx, nil))
		r.synchronize()
		for peer := range ranks { // read the words that the peers have written into b
			if got := *wordAt(b.Address() + uintptr(wordBytes*peer)); got != uint64(100+peer) {
				r.failf("the word from rank %d = %d; want %d", peer, got, 100+peer)
			}
		}
		const offset = 64
		inner, err := r.Runtime.Interop().PeerAddresses(r.World(), b.Address()+offset, wordBytes)
		r.ok(err)
		for peer := range ranks {
			if want := addresses[peer] + offset; inner[peer] != want {
				r.failf("address at offset %d of rank %d = %#x; want %#x", offset, peer, inner[peer], want)
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
		_, bufferErr := b.PeerAddresses(r.World())
		_, interopErr := r.Runtime.Interop().PeerAddresses(r.World(), b.Address(), 8)
		for _, err := range []error{bufferErr, interopErr} {
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

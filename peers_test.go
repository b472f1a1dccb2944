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

// wordFrom returns the word that a rank writes into every rank's buffer.
func wordFrom(rankNumber int) uint64 { return uint64(100 + rankNumber) }

// TestPeerAddressesReachEveryRank writes to the same buffer of every rank, at the addresses that
// PeerAddresses returns, and checks that each rank finds the words of its peers.
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
		addresses, err := b.PeerAddresses(r.World()) // by rank
		r.skipUnsupported(err)                       // skips the test, or fails it
		if len(addresses) != ranks || addresses[r.Rank()] != b.Address() {
			r.failf("PeerAddresses = %#x; want %d addresses, with %#x for rank %d", addresses, ranks,
				b.Address(), r.Rank())
		}

		for _, address := range addresses { // write a word into every rank's buffer
			*wordAt(address + uintptr(wordBytes*r.Rank())) = wordFrom(r.Rank())
		}

		r.ok(r.World().Barrier(r.ctx, nil))
		r.synchronize()
		for peer := range ranks { // read the words that the peers have written into b
			got, want := *wordAt(b.Address() + uintptr(wordBytes*peer)), wordFrom(peer)
			if got != want {
				r.failf("the word from rank %d = %d; want %d", peer, got, want)
			}
		}

		const offset = 64 // a range inside the buffer
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

// TestInvalidPeerAddresses checks calls without a buffer and without a group.
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

// TestPeerAddressesOfSuspendedPool checks that PeerAddresses fails while the memory is released,
// and that it returns the same addresses afterwards.
func TestPeerAddressesOfSuspendedPool(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		p := r.pool()
		b := r.window(p, 4096)
		want, err := b.PeerAddresses(r.World())
		if errors.Is(err, symmem.ErrUnsupported) {
			return // the backend has no addresses of peers
		}

		r.ok(err)
		r.suspend(p, symmem.DiscardContents)
		_, bufferErr := b.PeerAddresses(r.World())
		const bytes = 8
		_, interopErr := r.Runtime.Interop().PeerAddresses(r.World(), b.Address(), bytes)
		for call, err := range map[string]error{
			"Buffer.PeerAddresses": bufferErr, "Interop.PeerAddresses": interopErr,
		} {
			if !errors.Is(err, symmem.ErrSuspended) || !strings.Contains(err.Error(), "Pool.Resume") {
				r.failf("%s = %v, want ErrSuspended with the advice to call Pool.Resume", call, err)
			}
		}

		r.resume(p)
		if got, err := b.PeerAddresses(r.World()); err != nil || !slices.Equal(got, want) {
			r.failf("PeerAddresses after Resume = %#x, %v, want %#x", got, err, want)
		}
	})
}

package symmem_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"symmem"
)

// On some backends, a rank can access the buffers of other ranks, its peers, at peer addresses.

// wordAt converts an address to a pointer in a form that go vet accepts.
func wordAt(address uintptr) *uint64 { return *(**uint64)(unsafe.Pointer(&address)) }

func wordFrom(writer int) uint64 { return uint64(100 + writer) }

const (
	peerRanks     = 3
	peerWordBytes = 8
)

func TestPeerAddressesReachEveryRank(t *testing.T) {
	runRanks(t, peerRanks, symmem.Options{}, func(r *rank) {
		r.requireAddressable()
		p := r.pool()
		padding, err := p.Alloc(mib) // moves b away from offset 0
		r.ok(err)
		b, err := p.Alloc(4096)
		r.ok(err)
		if _, err := b.PeerAddresses(r.World()); !errors.Is(err, symmem.ErrInvalid) {
			r.failf("PeerAddresses before the registration = %v; want ErrInvalid", err)
		}

		r.ok(p.Register(r.ctx, r.World()))
		addresses, err := b.PeerAddresses(r.World())
		r.skipUnsupported(err)
		if len(addresses) != peerRanks || addresses[r.Rank()] != b.Address() {
			r.failf("PeerAddresses = %#x; want %d addresses, with %#x for rank %d", addresses, peerRanks,
				b.Address(), r.Rank())
		}

		exchangeWords(r, b, addresses)
		checkInnerAddresses(r, b, addresses)
		r.ok(b.Free())
		r.ok(padding.Free())
	})
}

// exchangeWords writes a word into the buffer of every rank, and checks the words from all ranks
// in b.
func exchangeWords(r *rank, b symmem.Buffer, addresses []uintptr) {
	r.t.Helper()
	for _, address := range addresses {
		*wordAt(address + uintptr(peerWordBytes*r.Rank())) = wordFrom(r.Rank())
	}

	r.ok(r.World().Barrier(r.ctx, nil))
	r.synchronize()
	for writer := range peerRanks {
		got := *wordAt(b.Address() + uintptr(peerWordBytes*writer))
		if want := wordFrom(writer); got != want {
			r.failf("the word from rank %d = %d; want %d", writer, got, want)
		}
	}
}

func checkInnerAddresses(r *rank, b symmem.Buffer, addresses []uintptr) {
	r.t.Helper()
	const offset = 64
	inner, err := r.Runtime.Interop().PeerAddresses(r.World(), b.Address()+offset, peerWordBytes)
	r.ok(err)
	for peer := range peerRanks {
		if want := addresses[peer] + offset; inner[peer] != want {
			r.failf("address at offset %d of rank %d = %#x; want %#x", offset, peer, inner[peer], want)
		}
	}
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

// A suspended pool has no memory, and so no peer addresses. Resume restores the same addresses.
func TestPeerAddressesOfSuspendedPool(t *testing.T) {
	runRanks(t, 2, suspendOptions(), func(r *rank) {
		p := r.pool()
		b := r.window(p, 4096)
		want, err := b.PeerAddresses(r.World())
		if errors.Is(err, symmem.ErrUnsupported) {
			return // the backend has no peer addresses
		}

		r.ok(err)
		r.suspend(p, symmem.DiscardContents)
		_, bufferErr := b.PeerAddresses(r.World())
		_, interopErr := r.Runtime.Interop().PeerAddresses(r.World(), b.Address(), peerWordBytes)
		for call, err := range map[string]error{
			"Buffer.PeerAddresses": bufferErr, "Interop.PeerAddresses": interopErr,
		} {
			isSuspended := errors.Is(err, symmem.ErrSuspended)
			if !isSuspended || !strings.Contains(err.Error(), "Pool.Resume") {
				r.failf("%s = %v, want ErrSuspended with the advice to call Pool.Resume", call, err)
			}
		}

		r.resume(p)
		if got, err := b.PeerAddresses(r.World()); err != nil || !slices.Equal(got, want) {
			r.failf("PeerAddresses after Resume = %#x, %v, want %#x", got, err, want)
		}
	})
}

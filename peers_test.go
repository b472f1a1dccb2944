package symmem_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"symmem"
)

// wordAt converts an address to a pointer in a form that go vet accepts.
func wordAt(address uintptr) *uint64 { return *(**uint64)(unsafe.Pointer(&address)) }

const peerWordBytes = 8

// wordFrom returns the word that a rank writes into the buffers of all ranks.
func wordFrom(writer int) uint64 {
	const arbitrary = 100
	return uint64(arbitrary + writer)
}

// wordAddress returns the address of the writer's word in a buffer.
func wordAddress(buffer uintptr, writer int) uintptr {
	return buffer + uintptr(writer*peerWordBytes)
}

// Each rank can write into the buffers of all ranks at their peer addresses.
func TestPeerAddressesReachEveryRank(t *testing.T) {
	const ranks = 3
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		r.requireAddressable()
		p := r.pool()
		padding := r.alloc(p, mib) // so that b has an offset other than 0
		b := r.alloc(p, 4096)
		if _, err := b.PeerAddresses(r.World()); !errors.Is(err, symmem.ErrInvalid) {
			r.failf("PeerAddresses before the registration = %v; want ErrInvalid", err)
		}

		r.ok(p.Register(r.ctx, r.World()))
		addresses, err := b.PeerAddresses(r.World())
		r.skipUnsupported(err)
		if len(addresses) != ranks || addresses[r.Rank()] != b.Address() {
			r.failf("PeerAddresses = %#x; want %d addresses, with %#x for rank %d", addresses, ranks,
				b.Address(), r.Rank())
		}

		exchangeWords(r, b, addresses)
		checkAddressesInsideBuffer(r, b, addresses)
		r.ok(b.Free())
		r.ok(padding.Free())
	})
}

// exchangeWords writes a word into the buffer of each rank, and checks the words of all ranks in b.
func exchangeWords(r *rank, b symmem.Buffer, addresses []uintptr) {
	r.t.Helper()
	for _, buffer := range addresses {
		*wordAt(wordAddress(buffer, r.Rank())) = wordFrom(r.Rank())
	}

	r.ok(r.World().Barrier(r.ctx, nil))
	r.synchronize()
	for writer := range addresses {
		got := *wordAt(wordAddress(b.Address(), writer))
		if want := wordFrom(writer); got != want {
			r.failf("the word from rank %d = %d; want %d", writer, got, want)
		}
	}
}

func checkAddressesInsideBuffer(r *rank, b symmem.Buffer, addresses []uintptr) {
	r.t.Helper()
	const offset = 64 // arbitrary
	inside, err := r.Interop().PeerAddresses(r.World(), b.Address()+offset, peerWordBytes)
	r.ok(err)
	for peer, start := range addresses {
		if want := start + offset; inside[peer] != want {
			r.failf("address at offset %d of rank %d = %#x; want %#x", offset, peer, inside[peer], want)
		}
	}
}

func TestInvalidPeerAddresses(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		if _, err := (symmem.Buffer{}).PeerAddresses(r.World()); !errors.Is(err, symmem.ErrForeign) {
			r.failf("PeerAddresses of the zero buffer = %v; want ErrForeign", err)
		}

		b := r.alloc(r.pool(), 8)
		if _, err := b.PeerAddresses(nil); !errors.Is(err, symmem.ErrInvalid) {
			r.failf("PeerAddresses in a nil group = %v; want ErrInvalid", err)
		}

		r.ok(b.Free())
	})
}

// While a pool is suspended, its buffers have no peer addresses. Resume restores the old addresses.
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
		_, interopErr := r.Interop().PeerAddresses(r.World(), b.Address(), peerWordBytes)
		wantResumeAdvice(r, "Buffer.PeerAddresses", bufferErr)
		wantResumeAdvice(r, "Interop.PeerAddresses", interopErr)
		r.resume(p)
		if got, err := b.PeerAddresses(r.World()); err != nil || !slices.Equal(got, want) {
			r.failf("PeerAddresses after Resume = %#x, %v, want %#x", got, err, want)
		}
	})
}

func wantResumeAdvice(r *rank, call string, err error) {
	r.t.Helper()
	isSuspended := errors.Is(err, symmem.ErrSuspended)
	if !isSuspended || !strings.Contains(err.Error(), "Pool.Resume") {
		r.failf("%s = %v, want ErrSuspended with the advice to call Pool.Resume", call, err)
	}
}

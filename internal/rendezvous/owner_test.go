package rendezvous

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

// If rank 0 cannot serve its store because a process uses the address, checkAddressOwner finds out
// to which user that process belongs. If it is another user, the result is a PeerError. Otherwise,
// it is advice for an error message: for example, to join PyTorch's store by setting EnvStore.

// TestAddressOfAnotherUserIsRefused checks addresses that this process uses. Its user counts as
// another user if checkAddressOwner gets a different user ID.
func TestAddressOfAnotherUserIsRefused(t *testing.T) {
	tcp, _ := serveOn(t, "127.0.0.1:0", "token")
	unix, _ := serveOn(t, privateAddress(), "")
	ownUID := uint32(os.Geteuid())
	otherUID := ownUID + 1
	for _, s := range []*Server{tcp, unix} {
		endpoint := Endpoint{Address: s.Address()}
		_, err := checkAddressOwner(testContext(t), endpoint, otherUID)
		var peerErr *PeerError
		if !errors.As(err, &peerErr) || peerErr.UID != ownUID || peerErr.Want != otherUID {
			t.Errorf("%s: got %v, want a PeerError with user %d", endpoint.Address, err, ownUID)
		}

		if err != nil && strings.Contains(err.Error(), EnvStore) {
			t.Errorf("got %v, want an error without advice to join another user's store", err)
		}

		advice, err := checkAddressOwner(testContext(t), endpoint, ownUID)
		if err != nil || advice == "" {
			t.Errorf("checkAddressOwner(%s) = %q, %v; want advice", endpoint.Address, advice, err)
		}
	}
}

// TestUnknownOwnerIsNotBlamed checks addresses on which no process listens. The advice must say
// that the owner is unknown.
func TestUnknownOwnerIsNotBlamed(t *testing.T) {
	const want = "cannot find out"
	for _, address := range []string{privateAddress(), "127.0.0.1:1"} {
		advice, err := checkAddressOwner(testContext(t), Endpoint{Address: address}, 0)
		if err != nil || !strings.Contains(advice, want) {
			t.Errorf("checkAddressOwner(%s) = %q, %v; want advice with %q", address, advice, err, want)
		}
	}
}

// TestPyTorchStoreIsSuggestedOnlyForPorts calls joinService, which serves a store, for an address
// that is in use. If it is a port, the error must suggest joining PyTorch's store. If it is a Unix
// socket, it must not, because PyTorch's store never uses Unix sockets.
func TestPyTorchStoreIsSuggestedOnlyForPorts(t *testing.T) {
	for address, wantAdvice := range map[string]bool{"127.0.0.1:0": true, privateAddress(): false} {
		err := joinUsedAddress(t, address)
		if err == nil || strings.Contains(err.Error(), EnvStore) != wantAdvice {
			t.Errorf("joinService(%s) = %v; want an error that mentions %s: %v",
				address, err, EnvStore, wantAdvice)
		}
	}
}

// joinUsedAddress listens on an address and then calls joinService for it. It cancels the context,
// because joinService would retry, and returns the error.
func joinUsedAddress(t *testing.T, address string) error {
	t.Helper()
	network, addr, err := splitAddress(address)
	if err != nil {
		t.Fatal(err)
	}

	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}

	closeLater(t, l)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	if network == "tcp" {
		address = l.Addr().String() // contains the port that the system chose
		cancel()
	}

	go func() {
		// For a Unix socket, joinService connects to it to find the owner. This would fail if ctx were
		// canceled before.
		if conn, err := l.Accept(); err == nil {
			conn.Close()
		}

		cancel()
	}()
	_, err = joinService(ctx, Endpoint{Address: address, Token: "token"}, &World{Size: 1})
	return err
}

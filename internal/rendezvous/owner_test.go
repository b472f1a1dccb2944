package rendezvous

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

// The advice to join PyTorch's store by setting EnvStore is only for stores of the same user.
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

func TestUnknownOwnerIsNotBlamed(t *testing.T) {
	const want = "cannot find out"
	const anyUID = 0
	unusedAddresses := []string{privateAddress(), "127.0.0.1:1"}
	for _, address := range unusedAddresses {
		advice, err := checkAddressOwner(testContext(t), Endpoint{Address: address}, anyUID)
		if err != nil || !strings.Contains(advice, want) {
			t.Errorf("checkAddressOwner(%s) = %q, %v; want advice with %q", address, advice, err, want)
		}
	}
}

// PyTorch never serves its store on a Unix socket.
func TestPyTorchStoreIsSuggestedOnlyForPorts(t *testing.T) {
	for address, wantAdvice := range map[string]bool{"127.0.0.1:0": true, privateAddress(): false} {
		err := joinUsedAddress(t, address)
		if err == nil || strings.Contains(err.Error(), EnvStore) != wantAdvice {
			t.Errorf("joinService(%s) = %v; want an error, with %s in it: %t",
				address, err, EnvStore, wantAdvice)
		}
	}
}

// joinUsedAddress listens on an address and returns the error of joinService for the address. It
// cancels the context of joinService, which would otherwise retry.
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
		address = l.Addr().String() // with the port that the system chose
		cancel()
	} else {
		go func() {
			// Before the cancellation, joinService must connect, to find the owner of the socket.
			if conn, err := l.Accept(); err == nil {
				conn.Close()
			}

			cancel()
		}()
	}

	_, err = joinService(ctx, Endpoint{Address: address, Token: "token"}, &World{Size: 1})
	return err
}

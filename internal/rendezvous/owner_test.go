package rendezvous

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

func TestAddressOfAnotherUserIsRefused(t *testing.T) {
	tcp, _ := serveOn(t, "127.0.0.1:0", "token")
	unix, _ := serveOn(t, privateAddress(), "")
	own := uint32(os.Geteuid())
	for _, s := range []*Server{tcp, unix} {
		endpoint := Endpoint{Address: s.Address()}
		_, err := checkAddressOwner(testContext(t), endpoint, own+1)
		var other *PeerError
		if !errors.As(err, &other) || other.UID != own || other.Want != own+1 {
			t.Errorf("%s: got %v, want a PeerError with user %d", endpoint.Address, err, own)
		}

		if err != nil && strings.Contains(err.Error(), EnvStore) {
			t.Errorf("got %v, want an error without advice to join another user's store", err)
		}

		if advice, err := checkAddressOwner(testContext(t), endpoint, own); err != nil || advice == "" {
			t.Errorf("checkAddressOwner(%s) = %q, %v; want advice", endpoint.Address, advice, err)
		}
	}
}

// TestUnknownOwnerIsNotBlamed checks addresses on which no process listens.
func TestUnknownOwnerIsNotBlamed(t *testing.T) {
	for _, address := range []string{privateAddress(), "127.0.0.1:1"} {
		advice, err := checkAddressOwner(testContext(t), Endpoint{Address: address}, 0)
		if want := "cannot find out"; err != nil || !strings.Contains(advice, want) {
			t.Errorf("checkAddressOwner(%s) = %q, %v; want advice with %q", address, advice, err, want)
		}
	}
}

// TestPyTorchStoreIsSuggestedOnlyForPorts serves a store at an address that is in use. For a Unix
// socket, the error must not suggest joining PyTorch's store, which never uses Unix sockets.
func TestPyTorchStoreIsSuggestedOnlyForPorts(t *testing.T) {
	for address, wantAdvice := range map[string]bool{"127.0.0.1:0": true, privateAddress(): false} {
		network, addr, err := splitAddress(address)
		if err != nil {
			t.Fatal(err)
		}

		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}

		closeLater(t, l)
		if network == "tcp" {
			address = l.Addr().String()
		}

		ctx, cancel := context.WithCancel(testContext(t))
		go func() {
			// joinService connects to find the owner of the address before it returns its advice.
			if conn, err := l.Accept(); err == nil {
				conn.Close()
			}

			cancel()
		}()
		if network == "tcp" {
			cancel()
		}

		_, err = joinService(ctx, Endpoint{Address: address, Token: "token"}, &World{Size: 1})
		cancel()
		if err == nil || strings.Contains(err.Error(), EnvStore) != wantAdvice {
			t.Errorf("joinService(%s) = %v; want an error that mentions %s: %v",
				address, err, EnvStore, wantAdvice)
		}
	}
}

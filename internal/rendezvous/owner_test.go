package rendezvous

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

// TestAddressOfAnotherUserIsRefused starts two servers and calls checkAddressOwner with their
// addresses, but with the ID of another user.
func TestAddressOfAnotherUserIsRefused(t *testing.T) {
	tcp, _ := serveOn(t, "127.0.0.1:0", "token")
	unix, _ := serveOn(t, privateName(), "")
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
			t.Errorf("addressInUse(%s) = %q, %v; want advice", endpoint.Address, advice, err)
		}
	}
}

// TestPyTorchStoreIsSuggestedOnlyForPorts tries to serve a store at a port and at a Unix socket
// that are in use. Only the error for the port may suggest joining PyTorch's store, because
// PyTorch's stores never use Unix sockets.
func TestPyTorchStoreIsSuggestedOnlyForPorts(t *testing.T) {
	for address, advised := range map[string]bool{"127.0.0.1:0": true, privateName(): false} {
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
			// serve connects to find out who uses the address, and then returns its advice.
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
		if err == nil || strings.Contains(err.Error(), EnvStore) != advised {
			t.Errorf("serve(%s) = %v; want an error that mentions %s: %v",
				address, err, EnvStore, advised)
		}
	}
}

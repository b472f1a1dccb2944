package rendezvous

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

// TestAddressOfAnotherUserIsRefused passes the ID of another user than that of this process, which
// listens.
func TestAddressOfAnotherUserIsRefused(t *testing.T) {
	tcp, _ := serveOn(t, "127.0.0.1:0", "token")
	unix, _ := serveOn(t, privateName(), "")
	own := uint32(os.Geteuid())
	for _, s := range []*Server{tcp, unix} {
		endpoint := Endpoint{Address: s.Address()}
		_, err := addressInUse(testContext(t), endpoint, own+1)
		var other *PeerError
		if !errors.As(err, &other) || other.UID != own || other.Want != own+1 {
			t.Errorf("%s: got %v, want user %d", endpoint.Address, err, own)
		}
		if err != nil && strings.Contains(err.Error(), EnvStore) {
			t.Errorf("got %v, want an error that does not suggest to join another user's store", err)
		}
		if advice, err := addressInUse(testContext(t), endpoint, own); err != nil || advice == "" {
			t.Errorf("addressInUse(%s) = %q, %v for its own user, want advice", endpoint.Address, advice, err)
		}
	}
}

// TestPyTorchsStoreIsSuggestedOnlyForPorts also uses a Unix socket, on which PyTorch never serves a
// store.
func TestPyTorchsStoreIsSuggestedOnlyForPorts(t *testing.T) {
	for address, advised := range map[string]bool{"127.0.0.1:0": true, privateName(): false} {
		network, addr, err := split(address)
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
			// serve has examined the address, so its advice is determined.
			if conn, err := l.Accept(); err == nil {
				conn.Close()
			}
			cancel()
		}()
		if network == "tcp" {
			cancel()
		}
		_, err = serve(ctx, Endpoint{Address: address, Token: "token"}, &World{Size: 1})
		cancel()
		if err == nil || strings.Contains(err.Error(), EnvStore) != advised {
			t.Errorf("%s: got %v, want an error that suggests %s: %v", address, err, EnvStore, advised)
		}
	}
}

package rendezvous

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
)

func TestServerRequiresToken(t *testing.T) {
	token := NewToken()
	for _, address := range []string{"127.0.0.1:0", privateAddress()} {
		s, c := serveOn(t, address, token)
		if err := c.Set(testContext(t), "k", nil); err != nil {
			t.Fatal(err)
		}
		_, wrongErr := Dial(testContext(t), Endpoint{Address: s.Address(), Token: token + "x"})
		if !errors.Is(wrongErr, ErrToken) {
			t.Fatalf("Dial with a wrong token = %v; want ErrToken", wrongErr)
		}
		unauthenticated, err := Dial(testContext(t), Endpoint{Address: s.Address()})
		if err != nil {
			t.Fatal(err)
		}
		closeLater(t, unauthenticated)
		if err := unauthenticated.Set(testContext(t), "k", nil); !errors.Is(err, ErrToken) {
			t.Fatalf("Set without a token = %v; want ErrToken", err)
		}
		if strings.Contains(wrongErr.Error()+token.String()+token.GoString(), string(token)) {
			t.Fatal("an error or a formatted token contains the secret")
		}
	}
}

func TestTokenForServerWithoutTokenIsRefused(t *testing.T) {
	s, _ := serveOn(t, privateAddress(), "")
	_, err := Dial(testContext(t), Endpoint{Address: s.Address(), Token: NewToken()})
	if !errors.Is(err, ErrToken) {
		t.Fatalf("got %v, want ErrToken", err)
	}
}

func TestUnauthenticatedRequestsAreLimited(t *testing.T) {
	s := newServer("test", "secret")
	closeLater(t, s)
	conn := openRawConn(t, s)
	send(t, conn, validateBytes+"0d 01020304")
	expect(t, conn, "01020304")
	long := strings.Repeat("k", maxTokenBytes)
	r := request{query: queryCheck, keys: []string{long, long}}
	go func() { _, _ = conn.Write(r.encode(nil)) }()
	if rest, err := io.ReadAll(conn); err != nil || len(rest) != 0 {
		t.Fatalf("read % x, %v; want a closed connection", rest, err)
	}
}

func TestTCPRequiresToken(t *testing.T) {
	if s, err := Listen("127.0.0.1:0", ""); err == nil {
		s.Close()
		t.Fatal("Listen on TCP succeeded without a token")
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	s, c := serveOn(t, privateAddress(), "")
	if err := c.Set(testContext(t), "k", nil); err != nil {
		t.Fatal(err)
	}
	otherUID := uint32(os.Geteuid()) + 1
	_, err := dial(testContext(t), Endpoint{Address: s.Address()}, otherUID)
	var peer *PeerError
	if !errors.As(err, &peer) || peer.UID != otherUID-1 || peer.Want != otherUID {
		t.Fatalf("dial of another user's server = %v; want a PeerError", err)
	}
	server := newServer(privateAddress(), "")
	server.uid = otherUID
	name := strings.TrimPrefix(server.address, unixScheme)
	if server.listener, err = net.Listen("unix", name); err != nil {
		t.Fatal(err)
	}
	server.goroutines.Go(server.acceptClients)
	closeLater(t, server)
	conn, err := net.Dial("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = handshake(testContext(t), conn, Endpoint{Address: server.address})
	if !errors.Is(err, ErrLost) {
		t.Fatalf("handshake of another user's client = %v; want ErrLost", err)
	}
}

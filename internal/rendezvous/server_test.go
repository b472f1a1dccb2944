package rendezvous

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
)

// TestServerRequiresToken connects with the right token, a wrong token and none, over TCP and a
// Unix socket. Neither an error nor a formatted token may contain the secret.
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

		for _, text := range []string{wrongErr.Error(), token.String(), token.GoString()} {
			if strings.Contains(text, string(token)) {
				t.Fatalf("%q contains the secret", text)
			}
		}
	}
}

func TestTokenForServerWithoutTokenIsRefused(t *testing.T) {
	s, _ := serveOn(t, privateAddress(), "")
	_, err := Dial(testContext(t), Endpoint{Address: s.Address(), Token: NewToken()})
	if !errors.Is(err, ErrToken) {
		t.Fatalf("Dial = %v, want ErrToken", err)
	}
}

// TestUnauthenticatedRequestsAreLimited sends a PING without the token, which is allowed, and then
// a request that is longer than the one that contains a token. The server must close the
// connection.
func TestUnauthenticatedRequestsAreLimited(t *testing.T) {
	s := newServer("test", "secret")
	closeLater(t, s)
	conn := openRawConn(t, s)
	const ping, pingAnswer = "0d 01020304", "01020304"
	send(t, conn, validateBytes+ping)
	expect(t, conn, pingAnswer)
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

// TestOtherUsersAreRefused uses Unix sockets, whose two sides know each other's user. First, a
// client expects the server of another user. Then, a server expects a client of another user.
func TestOtherUsersAreRefused(t *testing.T) {
	s, c := serveOn(t, privateAddress(), "")
	if err := c.Set(testContext(t), "k", nil); err != nil {
		t.Fatal(err)
	}

	ownUID := uint32(os.Geteuid())
	otherUID := ownUID + 1
	_, err := dial(testContext(t), Endpoint{Address: s.Address()}, otherUID)
	var peer *PeerError
	if !errors.As(err, &peer) || peer.UID != ownUID || peer.Want != otherUID {
		t.Fatalf("dial of another user's server = %v; want a PeerError about users %d and %d", err,
			ownUID, otherUID)
	}

	// Listen like Listen, but with another user ID.
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

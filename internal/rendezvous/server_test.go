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
	for _, address := range []string{"127.0.0.1:0", privateAddress()} {
		checkTokenIsRequired(t, address)
	}
}

func checkTokenIsRequired(t *testing.T, address string) {
	t.Helper()
	token := NewToken()
	s, authenticated := serveOn(t, address, token)
	if err := authenticated.Set(testContext(t), "k", nil); err != nil {
		t.Fatal(err)
	}

	_, wrongErr := Dial(testContext(t), Endpoint{Address: s.Address(), Token: token + "x"})
	if !errors.Is(wrongErr, ErrToken) {
		t.Fatalf("Dial with a wrong token = %v; want ErrToken", wrongErr)
	}

	// Without a token, Dial succeeds, but requests fail.
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
			t.Fatalf("%q contains the token", text)
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

func TestTCPRequiresToken(t *testing.T) {
	s, err := Listen("127.0.0.1:0", "")
	if err == nil {
		s.Close()
		t.Fatal("Listen on TCP succeeded without a token")
	}
}

// Before authentication, the server answers a PING, and closes the connection if a request is
// longer than any token.
func TestUnauthenticatedRequestsAreLimited(t *testing.T) {
	s := newServer("test", "secret")
	closeLater(t, s)
	conn := openRawConn(t, s)
	send(t, conn, validateBytes+pingQuery+pingNonce)
	expect(t, conn, pingNonce)
	longKey := strings.Repeat("k", maxTokenBytes)
	longRequest := request{query: queryCheck, keys: []string{longKey, longKey}}
	go func() { _, _ = conn.Write(longRequest.encode(nil)) }()
	rest, err := io.ReadAll(conn)
	if err != nil || len(rest) != 0 {
		t.Fatalf("read % x, %v; want a closed connection", rest, err)
	}
}

// On a Unix socket, clients and servers refuse peers of other users. Both sides of this test run in
// one process, so the test changes the user that each side expects.
func TestOtherUsersAreRefused(t *testing.T) {
	s, c := serveOn(t, privateAddress(), "")
	if err := c.Set(testContext(t), "k", nil); err != nil {
		t.Fatal(err)
	}

	ownUID := uint32(os.Geteuid())
	otherUID := ownUID + 1
	_, err := dial(testContext(t), Endpoint{Address: s.Address()}, otherUID)
	var peerErr *PeerError
	if !errors.As(err, &peerErr) || peerErr.UID != ownUID || peerErr.Want != otherUID {
		t.Fatalf("dial of another user's server = %v; want a PeerError about users %d and %d", err,
			ownUID, otherUID)
	}

	server := listenForUser(t, otherUID)
	conn, err := net.Dial("unix", strings.TrimPrefix(server.address, unixScheme))
	if err != nil {
		t.Fatal(err)
	}

	_, err = handshake(testContext(t), conn, Endpoint{Address: server.address})
	if !errors.Is(err, ErrLost) {
		t.Fatalf("handshake of another user's client = %v; want ErrLost", err)
	}
}

// listenForUser listens on a Unix socket and accepts only clients of the given user.
func listenForUser(t *testing.T, uid uint32) *Server {
	t.Helper()
	server := newServer(privateAddress(), "")
	server.uid = uid
	var err error
	server.listener, err = net.Listen("unix", strings.TrimPrefix(server.address, unixScheme))
	if err != nil {
		t.Fatal(err)
	}

	server.goroutines.Go(server.acceptClients)
	closeLater(t, server)
	return server
}

package rendezvous

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"testing"
	"time"
)

func dialWithoutHandshake(t *testing.T, s *Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Address())
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { conn.Close() })
	return conn
}

// encodeValidate returns VALIDATE, the first request of the handshake.
func encodeValidate() []byte {
	validate := request{query: queryValidate, nonce: protocolMagic}
	return validate.encode(nil)
}

// checkClosed checks that the server closes the connection without sending data.
func checkClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}

	n, err := conn.Read(make([]byte, 1))
	hasTimedOut := errors.Is(err, os.ErrDeadlineExceeded)
	if n != 0 || hasTimedOut {
		t.Errorf("Read = %d, %v; want a closed connection", n, err)
	}
}

// The server closes the oldest unauthenticated connections, but no connection with the token.
func TestUnauthenticatedConnectionsAreLimited(t *testing.T) {
	s, client := serveOn(t, "127.0.0.1:0", "token")
	const count = 2 * maxUnauthenticated
	const clientInterval = 64 // arbitrary number of connections between clients with the token
	var conns []net.Conn
	for range count {
		conns = append(conns, dialWithoutHandshake(t, s))
		if len(conns)%clientInterval == 0 {
			checkClientWorks(t, s)
		}
	}

	oldest := conns[:count-maxUnauthenticated]
	for _, conn := range oldest {
		checkClosed(t, conn)
	}

	s.mu.Lock()
	remaining := len(s.unauthenticated)
	s.mu.Unlock()
	if remaining > maxUnauthenticated {
		t.Errorf("%d unauthenticated connections remain, want at most %d",
			remaining, maxUnauthenticated)
	}

	if err := client.Set(testContext(t), "key", nil); err != nil {
		t.Errorf("the authenticated client: %v", err)
	}
}

func checkClientWorks(t *testing.T, s *Server) {
	t.Helper()
	c, err := Dial(testContext(t), Endpoint{Address: s.Address(), Token: "token"})
	if err != nil {
		t.Fatal(err)
	}

	closeLater(t, c)
	if err := c.Set(testContext(t), "key", nil); err != nil {
		t.Error(err)
	}
}

// handshakeTimeout limits the time until the handshake is complete.
func TestUnauthenticatedConnectionsTimeOut(t *testing.T) {
	s, client := serveOn(t, "127.0.0.1:0", "token")
	s.mu.Lock()
	s.handshakeTimeout = 50 * time.Millisecond // short, because the test waits for it
	s.mu.Unlock()
	silentConn := dialWithoutHandshake(t, s)
	partialConn := dialWithoutHandshake(t, s)
	if _, err := partialConn.Write(encodeValidate()); err != nil {
		t.Fatal(err)
	}

	checkClosed(t, silentConn)
	checkClosed(t, partialConn)
	// An authenticated client may be idle for longer than handshakeTimeout.
	if err := client.Set(testContext(t), "key", nil); err != nil {
		t.Error(err)
	}
}

// handshakeTimeout does not apply to clients in the server's process, which need no token.
func TestLocalClientHasNoDeadline(t *testing.T) {
	s, _ := serveOn(t, "127.0.0.1:0", "token")
	s.mu.Lock()
	s.handshakeTimeout = -time.Second // already over when a connection opens
	s.mu.Unlock()
	if err := s.Client().Set(testContext(t), "key", nil); err != nil {
		t.Error(err)
	}
}

// Drain waits only for clients that have sent the token.
func TestUnauthenticatedConnectionDoesNotDelayDrain(t *testing.T) {
	s, err := Listen("127.0.0.1:0", "token")
	if err != nil {
		t.Fatal(err)
	}

	conn := dialWithoutHandshake(t, s)
	requests, _ := appendPing(encodeValidate())
	if _, err := conn.Write(requests); err != nil {
		t.Fatal(err)
	}

	// The answer to the PING shows that the server has accepted the connection.
	const pingAnswerBytes = 4 // the nonce
	if _, err := io.ReadFull(conn, make([]byte, pingAnswerBytes)); err != nil {
		t.Fatal(err)
	}

	if err := s.Drain(testContext(t)); err != nil {
		t.Error(err)
	}

	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The limit is a quarter of the descriptors, but at least 4 and at most maxUnauthenticated.
func TestUnauthenticatedLimitFor(t *testing.T) {
	for descriptors, want := range map[uint64]int{
		8:              4,
		32:             8,
		256:            64,
		1024:           maxUnauthenticated,
		math.MaxUint64: maxUnauthenticated,
	} {
		if got := unauthenticatedLimitFor(descriptors); got != want {
			t.Errorf("unauthenticatedLimitFor(%d) = %d; want %d", descriptors, got, want)
		}
	}
}

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

// silent opens a TCP connection to a server and sends nothing.
func silent(t *testing.T, s *Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// wantHungUp checks that the server closes a connection.
func wantHungUp(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v, want the end", n, err)
	}
}

// TestUnauthenticatedConnectionsAreLimited checks that the oldest is closed first, and that ranks
// can connect among them.
func TestUnauthenticatedConnectionsAreLimited(t *testing.T) {
	s, first := serveOn(t, "127.0.0.1:0", "token")
	const more = 2 * maxUnauthenticated
	var all []net.Conn
	for range more {
		all = append(all, silent(t, s))
		if len(all)%64 != 0 {
			continue
		}
		c, err := Dial(testContext(t), Endpoint{Address: s.Address(), Token: "token"})
		if err != nil {
			t.Fatal(err)
		}
		closeLater(t, c)
		if err := c.Set(testContext(t), "key", nil); err != nil {
			t.Error(err)
		}
	}
	for _, conn := range all[:more-maxUnauthenticated] {
		wantHungUp(t, conn)
	}
	s.mu.Lock()
	unauthenticated := len(s.unauthenticated)
	s.mu.Unlock()
	if unauthenticated > maxUnauthenticated {
		t.Errorf("%d unauthenticated connections remain", unauthenticated)
	}
	if err := first.Set(testContext(t), "key", nil); err != nil {
		t.Error(err)
	}
}

// TestUnauthenticatedConnectionsTimeOut tests connections that have sent nothing or half of a
// handshake.
func TestUnauthenticatedConnectionsTimeOut(t *testing.T) {
	s, first := serveOn(t, "127.0.0.1:0", "token")
	s.mu.Lock()
	s.authTimeout = 50 * time.Millisecond
	s.mu.Unlock()
	nothing, half := silent(t, s), silent(t, s)
	greeting := (&request{query: queryValidate, nonce: magic}).append(nil)
	if _, err := half.Write(greeting); err != nil {
		t.Fatal(err)
	}
	wantHungUp(t, nothing)
	wantHungUp(t, half)
	// An authenticated client may be silent.
	if err := first.Set(testContext(t), "key", nil); err != nil {
		t.Error(err)
	}
}

// TestLocalClientHasNoDeadline checks that the handshake of a local client never times out, however
// busy the machine is.
func TestLocalClientHasNoDeadline(t *testing.T) {
	s, _ := serveOn(t, "127.0.0.1:0", "token")
	s.mu.Lock()
	s.authTimeout = -time.Second
	s.mu.Unlock()
	if err := s.Client().Set(testContext(t), "key", nil); err != nil {
		t.Error(err)
	}
}

// TestUnauthenticatedConnectionDoesNotDelayDrain connects without a token.
func TestUnauthenticatedConnectionDoesNotDelayDrain(t *testing.T) {
	s, err := Listen("127.0.0.1:0", "token")
	if err != nil {
		t.Fatal(err)
	}
	conn := silent(t, s)
	// The PING is answered, so the session has started.
	b, _ := appendPing((&request{query: queryValidate, nonce: magic}).append(nil))
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if err := s.Drain(testContext(t)); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestUnauthenticatedFor(t *testing.T) {
	for descriptors, want := range map[uint64]int{
		8: 4, 32: 8, 256: 64, 1024: maxUnauthenticated, math.MaxUint64: maxUnauthenticated,
	} {
		if got := unauthenticatedFor(descriptors); got != want {
			t.Errorf("of %d descriptors %d, want %d", descriptors, got, want)
		}
	}
}

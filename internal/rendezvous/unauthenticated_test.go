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

// silent opens a connection to a server on TCP that says nothing.
func silent(t *testing.T, s *Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// wantHungUp wants the server to close a connection.
func wantHungUp(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v, and wanted the end", n, err)
	}
}

// TestSilentConnectionsAreFew: the oldest goes first, and ranks come in among them.
func TestSilentConnectionsAreFew(t *testing.T) {
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
		t.Errorf("%d strangers are kept", unauthenticated)
	}
	if err := first.Set(testContext(t), "key", nil); err != nil {
		t.Error(err)
	}
}

// TestASilentConnectionIsClosedInTime, whether it has said nothing or half of what it must.
func TestASilentConnectionIsClosedInTime(t *testing.T) {
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
	// Who has shown the token may be silent.
	if err := first.Set(testContext(t), "key", nil); err != nil {
		t.Error(err)
	}
}

// TestAClientOfTheSameProcessHasNoDeadline: nothing ends its handshake, however busy the
// machine is.
func TestAClientOfTheSameProcessHasNoDeadline(t *testing.T) {
	s, _ := serveOn(t, "127.0.0.1:0", "token")
	s.mu.Lock()
	s.authTimeout = -time.Second
	s.mu.Unlock()
	if err := s.Client().Set(testContext(t), "key", nil); err != nil {
		t.Error(err)
	}
}

// TestAStrangerDoesNotHoldUpTheEnd of a store.
func TestAStrangerDoesNotHoldUpTheEnd(t *testing.T) {
	s, err := Listen("127.0.0.1:0", "token")
	if err != nil {
		t.Fatal(err)
	}
	conn := silent(t, s)
	// Its greeting is answered, so it is in.
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

func TestStrangersTakeAQuarterOfTheDescriptors(t *testing.T) {
	for descriptors, want := range map[uint64]int{
		8: 4, 32: 8, 256: 64, 1024: maxUnauthenticated, math.MaxUint64: maxUnauthenticated,
	} {
		if got := unauthenticatedFor(descriptors); got != want {
			t.Errorf("of %d descriptors %d, want %d", descriptors, got, want)
		}
	}
}

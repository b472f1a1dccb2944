package rendezvous

import (
	"errors"
	"net"
	"strings"
	"testing"
)

// listenRaw calls answer for every connection to a new TCP port, and then closes the connection. It
// returns the port's address.
func listenRaw(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	closeLater(t, l)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}

			answer(conn)
			conn.Close()
		}
	}()
	return l.Addr().String()
}

// TestClientReportsWrongProtocol connects to an HTTP server. The error must contain the server's
// address and the first bytes of its answer, which are "HTTP" in little-endian order.
func TestClientReportsWrongProtocol(t *testing.T) {
	addr := listenRaw(t, func(conn net.Conn) { _, _ = conn.Write([]byte("HTTP/1.1 400\r\n")) })
	_, err := Dial(testContext(t), Endpoint{Address: addr})
	if !errors.Is(err, ErrProtocol) {
		t.Fatalf("Dial = %v, want ErrProtocol", err)
	}

	for _, want := range []string{addr, "answered with 0x50545448"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Dial = %v, want an error that contains %q", err, want)
		}
	}
}

// TestClientRefusesInvalidReplies lets a server answer a query of the client with an invalid
// reply. The client must then close the connection.
func TestClientRefusesInvalidReplies(t *testing.T) {
	ctx := testContext(t)
	key := two64 + "'/k'" // the key k, with its length
	compareSetQuery, waitQuery := "02"+key+zero64+zero64, "06"+one64+key
	compareSet := func(c *Client) error { _, err := c.CompareSet(ctx, "k", nil, nil); return err }
	wait := func(c *Client) error { return c.Wait(ctx, "k") }
	rows := map[string]struct {
		call             func(c *Client) error
		wantQuery, reply string // bytes in the form that parseBytes reads
	}{
		"a huge value":                       {compareSet, compareSetQuery, "ffffffffffffffff"},
		"a value over 8 MiB":                 {compareSet, compareSetQuery, "0100800000000000"},
		"a cancellation without CANCEL_WAIT": {wait, waitQuery, "01"},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			c, _ := scriptedClient(t, r.wantQuery, r.reply)
			if err := r.call(c); !errors.Is(err, ErrProtocol) {
				t.Fatalf("the call = %v, want ErrProtocol", err)
			}

			if len(c.links) != 0 {
				t.Fatalf("%d connections remain, want none", len(c.links))
			}
		})
	}
}

// TestCallsFailAfterServerCloses closes the server during a call, and later the client. The errors
// must show which side was closed.
func TestCallsFailAfterServerCloses(t *testing.T) {
	s, c := serveOn(t, privateAddress(), "")
	if err := c.Set(testContext(t), "k", nil); err != nil {
		t.Fatal(err)
	}

	waitResult := make(chan error, 1)
	ctx := testContext(t)
	go func() { waitResult <- c.Wait(ctx, "never") }()
	// The wait must fail even if the server has not received it yet.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	if err := <-waitResult; !errors.Is(err, ErrLost) {
		t.Fatalf("Wait = %v; want ErrLost", err)
	}

	if err := c.Set(testContext(t), "k", nil); !errors.Is(err, ErrLost) {
		t.Fatalf("Set = %v; want ErrLost", err)
	}

	c.Close()
	if err := c.Set(testContext(t), "k", nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("Set after Close = %v; want ErrClosed", err)
	}
}

// TestCloseAbortsCallsInProgress closes the client during a Wait for a key that is never set.
func TestCloseAbortsCallsInProgress(t *testing.T) {
	_, c := serveOn(t, privateAddress(), "")
	waitResult := make(chan error, 1)
	ctx := testContext(t)
	go func() { waitResult <- c.Wait(ctx, "never") }()
	c.Close()
	if err := <-waitResult; !errors.Is(err, ErrClosed) {
		t.Fatalf("Wait = %v, want ErrClosed", err)
	}
}

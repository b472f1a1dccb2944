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

// TestClientRefusesInvalidReplies lets a fake server answer a query with an invalid reply. The
// client must then close the connection.
func TestClientRefusesInvalidReplies(t *testing.T) {
	ctx := testContext(t)
	const (
		compareSetQuery = "02" + keyK + zero64 + zero64 // for the key k and two empty values
		waitQuery       = "06" + one64 + keyK           // for one key, k
	)
	compareSet := func(c *Client) error { _, err := c.CompareSet(ctx, "k", nil, nil); return err }
	wait := func(c *Client) error { return c.Wait(ctx, "k") }
	for name, c := range map[string]struct {
		call      func(c *Client) error
		wantQuery string // bytes that the client must send, in the form that parseBytes reads
		reply     string // bytes that the server sends
	}{
		"a huge value": {
			call: compareSet, wantQuery: compareSetQuery, reply: "ffffffffffffffff",
		},
		"a value over 8 MiB": {
			call: compareSet, wantQuery: compareSetQuery, reply: "0100800000000000",
		},
		"a cancellation without CANCEL_WAIT": {
			call: wait, wantQuery: waitQuery, reply: "01",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := scriptedClient(t, c.wantQuery, c.reply)
			if err := c.call(client); !errors.Is(err, ErrProtocol) {
				t.Fatalf("the call = %v, want ErrProtocol", err)
			}

			if len(client.links) != 0 {
				t.Fatalf("%d connections remain, want none", len(client.links))
			}
		})
	}
}

// startWait calls Wait for a key that is never set, and returns a channel for the error. The server
// may receive the query later, or never.
func startWait(t *testing.T, c *Client) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	ctx := testContext(t)
	go func() { result <- c.Wait(ctx, "never") }()
	return result
}

// TestCallsFailAfterServerCloses closes the server during a Wait, and later the client. The error
// must be ErrLost after the server has closed, and ErrClosed after the client has closed.
func TestCallsFailAfterServerCloses(t *testing.T) {
	s, c := serveOn(t, privateAddress(), "")
	if err := c.Set(testContext(t), "k", nil); err != nil {
		t.Fatal(err)
	}

	waitResult := startWait(t, c)
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

// TestCloseAbortsCallsInProgress closes the client during a Wait, which must fail.
func TestCloseAbortsCallsInProgress(t *testing.T) {
	_, c := serveOn(t, privateAddress(), "")
	waitResult := startWait(t, c)
	c.Close()
	if err := <-waitResult; !errors.Is(err, ErrClosed) {
		t.Fatalf("Wait = %v, want ErrClosed", err)
	}
}

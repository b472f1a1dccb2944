package rendezvous

import (
	"errors"
	"net"
	"strings"
	"testing"
)

// listenRaw listens on a new TCP address. It calls answer for each connection, and then closes the
// connection.
func listenRaw(t *testing.T, answer func(net.Conn)) (addr string) {
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

func TestClientReportsWrongProtocol(t *testing.T) {
	addr := listenRaw(t, func(conn net.Conn) { _, _ = conn.Write([]byte("HTTP/1.1 400\r\n")) })
	_, err := Dial(testContext(t), Endpoint{Address: addr})
	if !errors.Is(err, ErrProtocol) {
		t.Fatalf("Dial = %v, want ErrProtocol", err)
	}

	const wantAnswer = "answered with 0x50545448" // "HTTP" as a little-endian number
	for _, want := range []string{addr, wantAnswer} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Dial = %v, want an error that contains %q", err, want)
		}
	}
}

func TestClientRefusesInvalidReplies(t *testing.T) {
	ctx := testContext(t)
	compareSet := func(c *Client) error {
		_, err := c.CompareSet(ctx, "k", nil, nil)
		return err
	}
	wait := func(c *Client) error { return c.Wait(ctx, "k") }
	// Requests of these calls, in the notation of parseBytes.
	const (
		compareSetRequest = compareSetQuery + keyK + zero64 + zero64 // key and two empty values
		waitRequest       = waitQuery + one64 + keyK                 // number of keys and one key
	)
	for name, test := range map[string]struct {
		call   func(c *Client) error
		script script
	}{
		"a huge value": {
			call:   compareSet,
			script: script{query: compareSetRequest, reply: "ffffffffffffffff"}, // length 1<<64 - 1
		},
		"a value over 8 MiB": {
			call:   compareSet,
			script: script{query: compareSetRequest, reply: "0100800000000000"}, // length 8<<20 + 1
		},
		"a cancellation without CANCEL_WAIT": {
			call:   wait,
			script: script{query: waitRequest, reply: canceled},
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := scriptedClient(t, test.script)
			if err := test.call(client); !errors.Is(err, ErrProtocol) {
				t.Fatalf("the call = %v, want ErrProtocol", err)
			}

			if len(client.links) != 0 {
				t.Fatalf("%d connections remain, want none", len(client.links))
			}
		})
	}
}

// startWait calls Wait on another goroutine, for a key that is never set.
func startWait(t *testing.T, c *Client) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	ctx := testContext(t)
	go func() { result <- c.Wait(ctx, "never") }()
	return result
}

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
		t.Fatalf("Wait while the server closes = %v; want ErrLost", err)
	}

	if err := c.Set(testContext(t), "k", nil); !errors.Is(err, ErrLost) {
		t.Fatalf("Set after the server has closed = %v; want ErrLost", err)
	}

	c.Close()
	if err := c.Set(testContext(t), "k", nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("Set after the client has closed = %v; want ErrClosed", err)
	}
}

func TestCloseAbortsCallsInProgress(t *testing.T) {
	_, c := serveOn(t, privateAddress(), "")
	waitResult := startWait(t, c)
	c.Close()
	if err := <-waitResult; !errors.Is(err, ErrClosed) {
		t.Fatalf("Wait = %v, want ErrClosed", err)
	}
}

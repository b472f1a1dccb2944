package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// scriptedClient returns a client of a fake server, which expects the query want after the
// handshake, and sends reply. Both have the notation of parseBytes: query 03 for the key "/k" of
// length 2 is "03 0200000000000000 '/k'". If want ends with "ping", the client must add a PING. The
// channel receives the result of the server.
func scriptedClient(t *testing.T, want, reply string) (*Client, <-chan error) {
	t.Helper()
	done := make(chan error, 1)
	c := newClient("script", func(ctx context.Context) (*link, error) {
		clientEnd, serverEnd := net.Pipe()
		go func() { done <- runScript(t, serverEnd, want, reply) }()
		return handshake(ctx, clientEnd, Endpoint{Address: "script"})
	})
	closeLater(t, c)
	return c, done
}

func runScript(t *testing.T, conn net.Conn, want, reply string) error {
	defer conn.Close()
	err := answerQueryAndPing(t, conn, validateBytes, "") // the handshake
	if err != nil {
		return err
	}

	query, wantsPing := strings.CutSuffix(want, "ping")
	if wantsPing {
		return answerQueryAndPing(t, conn, query, reply)
	}

	return answerQuery(t, conn, query, reply)
}

// answerQuery expects the bytes of want and writes reply.
func answerQuery(t *testing.T, conn net.Conn, want, reply string) error {
	wantBytes := parseBytes(t, want)
	got := make([]byte, len(wantBytes))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}

	if !bytes.Equal(got, wantBytes) {
		return fmt.Errorf("the client sent %x, want %x", got, wantBytes)
	}

	if reply == "" {
		return nil // An empty write to a pipe would wait for a reader.
	}

	_, err := conn.Write(parseBytes(t, reply))
	return err
}

// answerQueryAndPing is answerQuery for a query and a PING, whose answer is its random nonce.
func answerQueryAndPing(t *testing.T, conn net.Conn, want, reply string) error {
	const pingNumber = "0d"
	err := answerQuery(t, conn, want+pingNumber, reply)
	if err != nil {
		return err
	}

	var nonce [4]byte // follows the number of PING
	if _, err := io.ReadFull(conn, nonce[:]); err != nil {
		return err
	}

	_, err = conn.Write(nonce[:])
	return err
}

func TestClientQueryBytes(t *testing.T) {
	ctx := testContext(t)
	for name, c := range map[string]struct {
		call  func(c *Client) error
		want  string
		reply string
	}{
		"Set": {
			call:  func(c *Client) error { return c.Set(ctx, "k", []byte("v")) },
			want:  "01" + keyK + valueV + "ping", // A PING follows, because SET has no answer.
			reply: "",
		},
		"Add": {
			call:  func(c *Client) error { _, err := c.Add(ctx, "k", 3); return err },
			want:  "04" + keyK + three64,
			reply: three64,
		},
		"CompareSet": {
			call: func(c *Client) error {
				_, err := c.CompareSet(ctx, "k", []byte("e"), nil)
				return err
			},
			want:  "02" + keyK + valueE + zero64,
			reply: zero64,
		},
		"Wait": {
			call:  func(c *Client) error { return c.Wait(ctx, "k", "l") },
			want:  "06" + two64 + keyK + two64 + "'/l'", // number of keys, and two keys
			reply: "00",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, done := scriptedClient(t, c.want, c.reply)
			if err := c.call(client); err != nil {
				t.Errorf("the call = %v, want nil", err)
			}

			if err := <-done; err != nil {
				t.Errorf("the server: %v", err)
			}
		})
	}
}

// The server answers GET of a missing key with an empty value, so the client sends WAIT first.
func TestGetWaitsBeforeReading(t *testing.T) {
	clientEnd, serverEnd := net.Pipe()
	c := newClient("script", nil) // uses only the link below
	closeLater(t, c)
	l := newLink(clientEnd, "script")
	c.addLink(l)
	_ = c.releaseLink(l, nil) // makes the link idle, and returns the given error, nil
	done := make(chan error, 1)
	go func() { done <- answerWaitAndGet(t, serverEnd) }()
	checkValue(t, c, "k", "v")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func answerWaitAndGet(t *testing.T, conn net.Conn) error {
	defer conn.Close()
	err := answerQuery(t, conn, "06"+one64+keyK, "00") // WAIT
	if err != nil {
		return err
	}

	return answerQuery(t, conn, "03"+keyK, valueV) // GET
}

// isIncomplete means that part of a reply is still unread. A request that is canceled before its
// first byte is sent does not change this.
func TestRequestAbortedBeforeSendingKeepsIsIncomplete(t *testing.T) {
	clientEnd, serverEnd := net.Pipe() // A write would wait for a reader of serverEnd.
	closeLater(t, clientEnd)
	closeLater(t, serverEnd)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	readNothing := func(*decoder) error { return nil }
	for _, wasIncomplete := range []bool{false, true} {
		l := newLink(clientEnd, "mute")
		l.isIncomplete = wasIncomplete
		err := l.exchange(ctx, []byte{1}, readNothing)
		if !errors.Is(err, context.Canceled) || l.isIncomplete != wasIncomplete {
			t.Errorf("exchange = %v with isIncomplete = %t; want context.Canceled and %t",
				err, l.isIncomplete, wasIncomplete)
		}
	}
}

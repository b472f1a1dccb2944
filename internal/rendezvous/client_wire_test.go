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

// scriptedClient returns a client of a fake server. The server expects a handshake and the bytes in
// want, and then writes reply. Both have the form that parseBytes reads. If want ends with "ping",
// the server then expects a PING and answers it. When the server ends, the channel receives its
// error or nil.
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

// runScript runs the fake server of scriptedClient on one connection.
func runScript(t *testing.T, conn net.Conn, want, reply string) error {
	defer conn.Close()
	if err := answerPing(t, conn, validateBytes, ""); err != nil {
		return err
	}

	query, wantsPing := strings.CutSuffix(want, "ping")
	if wantsPing {
		return answerPing(t, conn, query, reply)
	}

	return answerQuery(t, conn, query, reply)
}

// answerQuery reads the bytes that want describes, and writes reply.
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

// answerPing is like answerQuery, but then also reads a PING and answers it.
func answerPing(t *testing.T, conn net.Conn, want, reply string) error {
	const pingByte = "0d" // The nonce follows.
	if err := answerQuery(t, conn, want+pingByte, reply); err != nil {
		return err
	}

	var nonce [4]byte
	if _, err := io.ReadFull(conn, nonce[:]); err != nil {
		return err
	}

	_, err := conn.Write(nonce[:])
	return err
}

// TestClientQueryBytes checks the bytes that the client sends for each call. The first byte of want
// is the number of the query.
func TestClientQueryBytes(t *testing.T) {
	ctx := testContext(t)
	k, l := two64+"'/k'", two64+"'/l'" // the keys k and l, with their lengths
	rows := map[string]struct {
		call        func(c *Client) error
		want, reply string // as in scriptedClient
	}{
		"Set": {
			call:  func(c *Client) error { return c.Set(ctx, "k", []byte("v")) },
			want:  "01" + k + one64 + "'v' ping", // A PING follows, because SET has no answer.
			reply: "",
		},
		"Add": {
			call:  func(c *Client) error { _, err := c.Add(ctx, "k", 3); return err },
			want:  "04" + k + three64,
			reply: three64,
		},
		"CompareSet": {
			call: func(c *Client) error {
				_, err := c.CompareSet(ctx, "k", []byte("e"), nil)
				return err
			},
			want:  "02" + k + one64 + "'e'" + zero64,
			reply: zero64,
		},
		"Wait": {
			call:  func(c *Client) error { return c.Wait(ctx, "k", "l") },
			want:  "06" + two64 + k + l, // for two keys
			reply: "00",
		},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			c, done := scriptedClient(t, r.want, r.reply)
			if err := r.call(c); err != nil {
				t.Errorf("the call = %v, want nil", err)
			}

			if err := <-done; err != nil {
				t.Errorf("the server: %v", err)
			}
		})
	}
}

// TestGetWaitsBeforeReading checks that Get sends WAIT before GET, because GET of a missing key
// returns an empty value.
func TestGetWaitsBeforeReading(t *testing.T) {
	clientEnd, serverEnd := net.Pipe()
	l := newLink(clientEnd, "script")
	c := newClient("script", nil)
	closeLater(t, c)
	// The client uses l for its next call.
	c.addLink(l)
	_ = c.releaseLink(l, nil)
	k := two64 + "'/k'" // the key k, with its length
	waitQuery, getQuery := "06"+one64+k, "03"+k
	done := make(chan error, 1)
	go func() {
		defer serverEnd.Close()
		err := answerQuery(t, serverEnd, waitQuery, "00")
		if err == nil {
			err = answerQuery(t, serverEnd, getQuery, one64+"'v'")
		}

		done <- err
	}()
	checkValue(t, c, "k", "v")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestRequestAbortedBeforeSendingKeepsIsIncomplete sends a request to a server that reads nothing,
// with a canceled context. isIncomplete means that a part of a request or answer is missing on the
// link. It must keep its value, because no byte was sent.
func TestRequestAbortedBeforeSendingKeepsIsIncomplete(t *testing.T) {
	clientEnd, serverEnd := net.Pipe()
	closeLater(t, clientEnd)
	closeLater(t, serverEnd)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	for _, wasIncomplete := range []bool{false, true} {
		l := newLink(clientEnd, "mute")
		l.isIncomplete = wasIncomplete
		err := l.exchange(ctx, []byte{1}, func(*decoder) error { return nil })
		if !errors.Is(err, context.Canceled) || l.isIncomplete != wasIncomplete {
			t.Errorf("exchange = %v with isIncomplete = %t; want context.Canceled and %t",
				err, l.isIncomplete, wasIncomplete)
		}
	}
}

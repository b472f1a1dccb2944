package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
)

// script describes a query and its reply, both in the notation of parseBytes. For example, a GET of
// "/k", a key of 2 bytes, is "03 0200000000000000 '/k'".
type script struct {
	query   string
	hasPing bool // whether a PING follows the query, because the query has no reply
	reply   string
}

// scriptedClient returns a client of a fake server, which runs a script after the handshake. The
// channel receives the result of the server.
func scriptedClient(t *testing.T, s script) (*Client, <-chan error) {
	t.Helper()
	done := make(chan error, 1)
	c := newClient("script", func(ctx context.Context) (*link, error) {
		clientEnd, serverEnd := net.Pipe()
		go func() { done <- s.run(t, serverEnd) }()
		return handshake(ctx, clientEnd, Endpoint{Address: "script"})
	})
	closeLater(t, c)
	return c, done
}

func (s script) run(t *testing.T, conn net.Conn) error {
	defer conn.Close()
	err := answerQueryAndPing(t, conn, validateBytes, "") // the handshake
	if err != nil {
		return err
	}

	if s.hasPing {
		return answerQueryAndPing(t, conn, s.query, s.reply)
	}

	return answerQuery(t, conn, s.query, s.reply)
}

// answerQuery reads a query, compares it to want, and writes reply.
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

// answerQueryAndPing is answerQuery for a query and a PING. The answer to a PING is its nonce.
func answerQueryAndPing(t *testing.T, conn net.Conn, want, reply string) error {
	err := answerQuery(t, conn, want+pingQuery, reply)
	if err != nil {
		return err
	}

	var nonce [4]byte // random
	if _, err := io.ReadFull(conn, nonce[:]); err != nil {
		return err
	}

	_, err = conn.Write(nonce[:])
	return err
}

func TestClientQueryBytes(t *testing.T) {
	ctx := testContext(t)
	for name, c := range map[string]struct {
		call   func(c *Client) error
		script script
	}{
		"Set": {
			call:   func(c *Client) error { return c.Set(ctx, "k", []byte("v")) },
			script: script{query: setQuery + keyK + valueV, hasPing: true},
		},
		"Add": {
			call: func(c *Client) error {
				_, err := c.Add(ctx, "k", 3)
				return err
			},
			script: script{query: addQuery + keyK + three64, reply: three64},
		},
		"CompareSet": {
			call: func(c *Client) error {
				const expected, desired = "e", ""
				_, err := c.CompareSet(ctx, "k", []byte(expected), []byte(desired))
				return err
			},
			script: script{query: compareSetQuery + keyK + valueE + zero64, reply: zero64},
		},
		"Wait": {
			call: func(c *Client) error { return c.Wait(ctx, "k", "l") },
			script: script{
				query: waitQuery + two64 + keyK + two64 + "'/l'", // number of keys, two keys
				reply: waitOver,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, done := scriptedClient(t, c.script)
			if err := c.call(client); err != nil {
				t.Errorf("the call = %v, want nil", err)
			}

			if err := <-done; err != nil {
				t.Errorf("the server: %v", err)
			}
		})
	}
}

// The server answers a GET of a missing key with an empty value, so the client first sends a WAIT.
func TestGetWaitsBeforeReading(t *testing.T) {
	clientEnd, serverEnd := net.Pipe()
	c := newClient("script", nil) // never dials, because it has the link below
	closeLater(t, c)
	l := newLink(clientEnd, "script")
	c.addIdle(l)
	done := make(chan error, 1)
	go func() { done <- answerWaitAndGet(t, serverEnd) }()
	checkValue(t, c, "k", "v")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func answerWaitAndGet(t *testing.T, conn net.Conn) error {
	defer conn.Close()
	err := answerQuery(t, conn, waitQuery+one64+keyK, waitOver)
	if err != nil {
		return err
	}

	return answerQuery(t, conn, getQuery+keyK, valueV)
}

// hasPendingReply means that part of a reply is still unread. It does not change if a request is
// canceled before the first byte is sent.
func TestRequestAbortedBeforeSendingKeepsIsIncomplete(t *testing.T) {
	clientEnd, serverEnd := net.Pipe() // A write would wait for a reader of serverEnd.
	closeLater(t, clientEnd)
	closeLater(t, serverEnd)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	readNothing := func(*decoder) error { return nil }
	for _, hadPendingReply := range []bool{false, true} {
		l := newLink(clientEnd, "mute")
		l.hasPendingReply = hadPendingReply
		err := l.exchange(ctx, []byte{1}, readNothing)
		if !errors.Is(err, context.Canceled) || l.hasPendingReply != hadPendingReply {
			t.Errorf("exchange = %v with hasPendingReply = %t; want context.Canceled and %t",
				err, l.hasPendingReply, hadPendingReply)
		}
	}
}

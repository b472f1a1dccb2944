package rendezvous

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// listenRaw runs answer for every connection to a TCP address.
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

func TestClientNamesAServerThatSpeaksGarbage(t *testing.T) {
	addr := listenRaw(t, func(conn net.Conn) { _, _ = conn.Write([]byte("HTTP/1.1 400\r\n")) })
	_, err := Dial(testContext(t), Endpoint{Address: addr})
	var protocol *ProtocolError
	if !errors.As(err, &protocol) || !errors.Is(err, ErrProtocol) {
		t.Fatalf("%v is no ProtocolError", err)
	}
	if protocol.Addr != addr || !strings.Contains(err.Error(), "answered with 0x50545448") {
		t.Fatalf("the message names neither address nor answer: %v", err)
	}
}

func TestClientRefusesAbsurdReplies(t *testing.T) {
	ctx := testContext(t)
	k := two64 + "'/k'"
	rows := map[string]struct {
		want, reply string
		call        func(c *Client) error
	}{
		"a value without end": {
			"02" + k + zero64 + zero64, "ffffffffffffffff",
			func(c *Client) error { _, err := c.CompareSet(ctx, "k", nil, nil); return err },
		},
		"a value over 8 MiB": {
			"02" + k + zero64 + zero64, "0100800000000000",
			func(c *Client) error { _, err := c.CompareSet(ctx, "k", nil, nil); return err },
		},
		"WAIT that was never cancelled": {
			"06" + one64 + k, "01",
			func(c *Client) error { return c.Wait(ctx, "k") },
		},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			c, _ := scripted(t, r.want, r.reply)
			if err := r.call(c); !errors.Is(err, ErrProtocol) {
				t.Fatalf("%v is no ErrProtocol", err)
			}
			if len(c.all) != 0 {
				t.Fatal("the connection was kept")
			}
		})
	}
}

func TestTokens(t *testing.T) {
	token := NewToken()
	for _, address := range []string{"127.0.0.1:0", privateName()} {
		s, c := serveOn(t, address, token)
		if err := c.Set(testContext(t), "k", nil); err != nil {
			t.Fatal(err)
		}
		_, wrong := Dial(testContext(t), Endpoint{Address: s.Address(), Token: token + "x"})
		if !errors.Is(wrong, ErrToken) {
			t.Fatalf("wrong token: %v", wrong)
		}
		stranger, err := Dial(testContext(t), Endpoint{Address: s.Address()})
		if err != nil {
			t.Fatal(err)
		}
		closeLater(t, stranger)
		if err := stranger.Set(testContext(t), "k", nil); !errors.Is(err, ErrToken) {
			t.Fatalf("no token: %v", err)
		}
		if strings.Contains(wrong.Error()+token.String()+token.GoString(), string(token)) {
			t.Fatal("the token shows")
		}
	}
}

func TestARankWithoutATokenDoesNotTryForLong(t *testing.T) {
	s, _ := serveOn(t, privateName(), "secret")
	worlds := worldsOf(2, Route{Kind: RouteServe, Endpoint: Endpoint{Address: s.Address()}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, _, err := Connect(ctx, worlds[1]); !errors.Is(err, ErrToken) || ctx.Err() != nil {
		t.Fatalf("%v, and then %v", err, ctx.Err())
	}
}

func TestTokenOfAServerThatWantsNone(t *testing.T) {
	s, _ := serveOn(t, privateName(), "")
	_, err := Dial(testContext(t), Endpoint{Address: s.Address(), Token: NewToken()})
	if !errors.Is(err, ErrToken) {
		t.Fatal(err)
	}
}

func TestStrangersAreReadNoMoreThanAToken(t *testing.T) {
	s := newServer("test", "secret")
	closeLater(t, s)
	conn := rawConn(t, s)
	send(t, conn, hello+"0d 01020304")
	expect(t, conn, "01020304")
	long := strings.Repeat("k", maxTokenBytes)
	r := request{query: queryCheck, keys: []string{long, long}}
	go func() { _, _ = conn.Write(r.append(nil)) }()
	if rest, err := io.ReadAll(conn); err != nil || len(rest) != 0 {
		t.Fatalf("% x, %v", rest, err)
	}
}

func TestTCPRequiresAToken(t *testing.T) {
	if s, err := Listen("127.0.0.1:0", ""); err == nil {
		s.Close()
		t.Fatal("a server without a token listens on TCP")
	}
}

func TestOtherUsersAreKeptOut(t *testing.T) {
	s, c := serveOn(t, privateName(), "")
	if err := c.Set(testContext(t), "k", nil); err != nil {
		t.Fatal(err)
	}
	other := uint32(os.Geteuid()) + 1
	_, err := dial(testContext(t), Endpoint{Address: s.Address()}, other)
	var peer *PeerError
	if !errors.As(err, &peer) || peer.UID != other-1 || peer.Want != other {
		t.Fatalf("the client talks to a server of another user: %v", err)
	}
	strict := newServer(privateName(), "")
	strict.uid = other
	name := strings.TrimPrefix(strict.address, unixScheme)
	if strict.listener, err = net.Listen("unix", name); err != nil {
		t.Fatal(err)
	}
	strict.running.Go(strict.accept)
	closeLater(t, strict)
	conn, err := net.Dial("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = handshake(testContext(t), conn, Endpoint{Address: strict.address})
	if !errors.Is(err, ErrLost) {
		t.Fatalf("the server talks to a client of another user: %v", err)
	}
}

func TestStoreThatGoesAwayIsLost(t *testing.T) {
	s, c := serveOn(t, privateName(), "")
	if err := c.Set(testContext(t), "k", nil); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	ctx := testContext(t)
	go func() { waiting <- c.Wait(ctx, "never") }()
	// Whether the wait has reached the server or not, it is lost.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; !errors.Is(err, ErrLost) {
		t.Fatalf("waiting: %v", err)
	}
	if err := c.Set(testContext(t), "k", nil); !errors.Is(err, ErrLost) {
		t.Fatalf("afterwards: %v", err)
	}
	c.Close()
	if err := c.Set(testContext(t), "k", nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("after Close: %v", err)
	}
}

func TestCloseEndsCallsInProgress(t *testing.T) {
	_, c := serveOn(t, privateName(), "")
	waiting := make(chan error, 1)
	ctx := testContext(t)
	go func() { waiting <- c.Wait(ctx, "never") }()
	c.Close()
	if err := <-waiting; !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestDialWaitsForTheServer(t *testing.T) {
	address := privateName()
	dialed := make(chan error, 1)
	ctx := testContext(t)
	go func() {
		c, err := Dial(ctx, Endpoint{Address: address})
		if err == nil {
			err = c.Close()
		}
		dialed <- err
	}()
	s, err := Listen(address, "")
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s)
	if err := <-dialed; err != nil {
		t.Fatal(err)
	}
}

func TestDialGivesUpWithTheLastError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(testContext(t))
	cause := errors.New("the user left")
	cancel(cause)
	_, err := Dial(ctx, Endpoint{Address: privateName()})
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "the last attempt: dial unix") {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "host", "host:", "unix:", "unix:@", ":"} {
		if _, err := Dial(testContext(t), Endpoint{Address: bad}); err == nil {
			t.Fatalf("%q is an address", bad)
		}
	}
}

package rendezvous

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestConnectWithoutTokenFailsImmediately(t *testing.T) {
	s, _ := serveOn(t, privateAddress(), "secret")
	worlds := worldsOf(2, Route{Kind: RouteServe, Endpoint: Endpoint{Address: s.Address()}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, _, err := Connect(ctx, worlds[1]); !errors.Is(err, ErrToken) || ctx.Err() != nil {
		t.Fatalf("got %v, want ErrToken before the deadline", err)
	}
}

func TestDialWaitsForServer(t *testing.T) {
	address := privateAddress()
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

func TestDialReturnsLastError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(testContext(t))
	cause := errors.New("interrupted")
	cancel(cause)
	_, err := Dial(ctx, Endpoint{Address: privateAddress()})
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "the last attempt: dial unix") {
		t.Fatalf("got %v, want an error that contains the cause and the last attempt", err)
	}

	for _, invalid := range []string{"", "host", "host:", "unix:", "unix:@", ":"} {
		if _, err := Dial(testContext(t), Endpoint{Address: invalid}); err == nil {
			t.Fatalf("Dial(%q) succeeded; want an error", invalid)
		}
	}
}

package rendezvous

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// stoppedConn is a connection whose Read blocks while it is stopped, like that of a process that
// was stopped by a signal. It is not stopped if stopped is nil or its channel is closed.
type stoppedConn struct {
	net.Conn
	stopped atomic.Pointer[chan struct{}] // closed when the process continues
}

func (c *stoppedConn) Read(b []byte) (int, error) {
	if stopped := c.stopped.Load(); stopped != nil {
		<-*stopped
	}

	n, err := c.Conn.Read(b)
	if stopped := c.stopped.Load(); stopped != nil {
		<-*stopped // The process was stopped while it waited for data.
	}

	return n, err
}

// TestStoppedRankKnowsThatRankZeroLeft stops rank 1 until rank 0, which serves the store, has left
// (intentionally) or ended. Rank 1 must then know which of them happened. In some cases, rank 2
// ends meanwhile, so that the report about it is unread too.
func TestStoppedRankKnowsThatRankZeroLeft(t *testing.T) {
	t.Parallel()
	const tcp = "127.0.0.1:0" // as between machines
	for name, c := range map[string]struct {
		address  string
		hasLeft  bool // rank 0 leaves, and does not only end
		otherEnd bool // rank 2 ends before
	}{
		"rank 0 leaves": {address: privateAddress(), hasLeft: true},
		"rank 0 leaves after the end of rank 2": {
			address: privateAddress(), hasLeft: true, otherEnd: true,
		},
		"rank 0 of another machine leaves":    {address: tcp, hasLeft: true, otherEnd: true},
		"rank 0 ends":                         {address: privateAddress()},
		"rank 0 ends after the end of rank 2": {address: privateAddress(), otherEnd: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, _ := serveOn(t, c.address, "token")
			endpoint := Endpoint{Address: server.Address(), Token: "token"}
			network, addr, err := splitAddress(endpoint.Address)
			if err != nil {
				t.Fatal(err)
			}

			conn := &stoppedConn{}
			client := newClient(endpoint.Address, func(ctx context.Context) (*link, error) {
				conn.Conn, err = net.Dial(network, addr)
				if err != nil {
					return nil, err
				}

				return handshake(ctx, conn, endpoint)
			})
			m := &Member{world: worldsOf(3, Route{Kind: RouteServe})[1], keyPrefix: "base"}
			m.watcher, err = startEndWatcher(testContext(t), m, client)
			if err != nil {
				t.Fatal(err)
			}

			stopped := make(chan struct{})
			conn.stopped.Store(&stopped)
			if c.otherEnd {
				server.RecordExit(2, "rank 2 exited with code 3")
			}

			if c.hasLeft {
				server.announceClosing() // returns after flushTimeout, because rank 1 reads nothing
			}

			if err := server.Close(); err != nil {
				t.Error(err)
			}

			close(stopped)
			hasAny := func(ended []*EndedError) bool { return len(ended) > 0 }
			ended := m.AwaitEnded(testContext(t), []int{0}, hasAny)
			if len(ended) != 1 || ended[0].HasLeft != c.hasLeft {
				t.Fatalf("AwaitEnded = %+v, want one error with HasLeft = %t", ended, c.hasLeft)
			}

			text := ended[0].Description
			if saysLeft := strings.Contains(text, "has left"); saysLeft != c.hasLeft {
				t.Errorf("got description %q, want \"has left\" in it: %t", text, c.hasLeft)
			}

			if err := m.watcher.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

package rendezvous

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// Rank 0 serves the store of a job. It can leave the job intentionally, or end, as in a crash. The
// other ranks must know which of them happened. Therefore, the server announces to them that rank 0
// leaves, before it closes.
//
// A rank that is stopped, for example by Ctrl-Z, cannot read the announcement in time. When it
// continues, the connection is closed already. It must find out from the data that it has not read.

// stoppableConn is a connection of a process that can be stopped. While the process is stopped,
// Read blocks.
type stoppableConn struct {
	net.Conn
	// continued is nil until the process is stopped. The channel is closed when it continues.
	continued atomic.Pointer[chan struct{}]
}

func (c *stoppableConn) Read(b []byte) (int, error) {
	c.awaitContinued()
	n, err := c.Conn.Read(b)
	c.awaitContinued() // The process may have been stopped while it waited for data.
	return n, err
}

// awaitContinued blocks while the process is stopped.
func (c *stoppableConn) awaitContinued() {
	if continued := c.continued.Load(); continued != nil {
		<-*continued
	}
}

// stop stops the process until the returned function is called.
func (c *stoppableConn) stop() (proceed func()) {
	continued := make(chan struct{})
	c.continued.Store(&continued)
	return func() { close(continued) }
}

// stoppedRankCase describes what happens while rank 1 is stopped.
type stoppedRankCase struct {
	address       string // of the store
	hasLeft       bool   // rank 0 leaves, and otherwise it ends
	hasRank2Ended bool   // rank 2 ends before, so rank 1 has another unread report
}

// TestStoppedRankKnowsThatRankZeroLeft stops rank 1 until rank 0 has left or ended. When rank 1
// continues, it must know which of them happened.
func TestStoppedRankKnowsThatRankZeroLeft(t *testing.T) {
	t.Parallel()
	const tcp = "127.0.0.1:0" // as between machines
	for name, c := range map[string]stoppedRankCase{
		"rank 0 leaves": {address: privateAddress(), hasLeft: true},
		"rank 0 leaves after the end of rank 2": {
			address: privateAddress(), hasLeft: true, hasRank2Ended: true,
		},
		"rank 0 of another machine leaves":    {address: tcp, hasLeft: true, hasRank2Ended: true},
		"rank 0 ends":                         {address: privateAddress()},
		"rank 0 ends after the end of rank 2": {address: privateAddress(), hasRank2Ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, _ := serveOn(t, c.address, "token")
			endpoint := Endpoint{Address: server.Address(), Token: "token"}
			rank1, conn := watchOverStoppableConn(t, endpoint)
			proceed := conn.stop()
			closeServer(t, server, c)
			proceed()
			checkEndOfRankZero(t, rank1, c.hasLeft)
			if err := rank1.watcher.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// watchOverStoppableConn returns rank 1 of three. It watches over the returned connection for the
// ends of other ranks.
func watchOverStoppableConn(t *testing.T, endpoint Endpoint) (*Member, *stoppableConn) {
	t.Helper()
	network, addr, err := splitAddress(endpoint.Address)
	if err != nil {
		t.Fatal(err)
	}

	conn := &stoppableConn{}
	client := newClient(endpoint.Address, func(ctx context.Context) (*link, error) {
		var err error
		conn.Conn, err = net.Dial(network, addr)
		if err != nil {
			return nil, err
		}

		return handshake(ctx, conn, endpoint)
	})
	rank1 := &Member{world: worldsOf(3, Route{Kind: RouteServe})[1], keyPrefix: "base"}
	rank1.watcher, err = startEndWatcher(testContext(t), rank1, client)
	if err != nil {
		t.Fatal(err)
	}

	return rank1, conn
}

// closeServer closes the server of rank 0 in the way that c describes.
func closeServer(t *testing.T, server *Server, c stoppedRankCase) {
	t.Helper()
	if c.hasRank2Ended {
		server.RecordExit(2, "rank 2 exited with code 3")
	}

	if c.hasLeft {
		server.announceClosing() // returns after flushTimeout, because rank 1 reads nothing
	}

	if err := server.Close(); err != nil {
		t.Error(err)
	}
}

// checkEndOfRankZero waits until rank 1 reports something about rank 0: that it has left, or that
// it has ended.
func checkEndOfRankZero(t *testing.T, rank1 *Member, wantLeft bool) {
	t.Helper()
	hasAny := func(ended []*EndedError) bool { return len(ended) > 0 }
	ended := rank1.AwaitEnded(testContext(t), []int{0}, hasAny)
	if len(ended) != 1 || ended[0].HasLeft != wantLeft {
		t.Fatalf("AwaitEnded = %+v, want one error with HasLeft = %t", ended, wantLeft)
	}

	description := ended[0].Description
	saysLeft := strings.Contains(description, "has left")
	if saysLeft != wantLeft {
		t.Errorf("got description %q, want \"has left\" in it: %t", description, wantLeft)
	}
}

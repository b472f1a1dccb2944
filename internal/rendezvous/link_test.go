package rendezvous

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// stoppableConn simulates the connection of a process that can be stopped, for example by Ctrl-Z.
// Read blocks while the process is stopped.
type stoppableConn struct {
	net.Conn
	// continued is nil before the process is stopped. The channel is closed when it continues.
	continued atomic.Pointer[chan struct{}]
}

func (c *stoppableConn) Read(b []byte) (int, error) {
	c.awaitContinued()
	n, err := c.Conn.Read(b)
	c.awaitContinued() // The process may have been stopped while it waited for data.
	return n, err
}

func (c *stoppableConn) awaitContinued() {
	if continued := c.continued.Load(); continued != nil {
		<-*continued
	}
}

func (c *stoppableConn) stop() (resume func()) {
	continued := make(chan struct{})
	c.continued.Store(&continued)
	return func() { close(continued) }
}

// stoppedRankCase describes what happens while rank 1 is stopped. Rank 0 serves the store.
type stoppedRankCase struct {
	address        string // of the store
	rank0Leaves    bool   // rank 0 announces that it leaves; otherwise, it crashes
	rank2EndsFirst bool   // rank 1 then has two unread reports
}

// A rank distinguishes leaving from a crash, even if it was stopped when rank 0 closed the store.
func TestStoppedRankKnowsThatRankZeroLeft(t *testing.T) {
	t.Parallel()
	const tcpAddress = "127.0.0.1:0"
	for name, c := range map[string]stoppedRankCase{
		"rank 0 leaves": {address: privateAddress(), rank0Leaves: true},
		"rank 0 leaves after the end of rank 2": {
			address: privateAddress(), rank0Leaves: true, rank2EndsFirst: true,
		},
		"rank 0 of another machine leaves": {
			address: tcpAddress, rank0Leaves: true, rank2EndsFirst: true,
		},
		"rank 0 ends": {address: privateAddress()},
		"rank 0 ends after the end of rank 2": {
			address: privateAddress(), rank2EndsFirst: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, _ := serveOn(t, c.address, "token")
			endpoint := Endpoint{Address: server.Address(), Token: "token"}
			rank1, conn := watchOverStoppableConn(t, endpoint)
			resume := conn.stop()
			closeServer(t, server, c)
			resume()
			checkEndOfRankZero(t, rank1, c.rank0Leaves)
			if err := rank1.watcher.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// watchOverStoppableConn returns rank 1 of 3. On the connection, the store reports to rank 1 which
// other ranks have ended.
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
	rank1 := &Member{world: worldsOf(3, Route{Kind: RouteServe})[1], keyPrefix: "arbitrary"}
	rank1.watcher, err = startEndWatcher(testContext(t), rank1, client)
	if err != nil {
		t.Fatal(err)
	}

	return rank1, conn
}

func closeServer(t *testing.T, server *Server, c stoppedRankCase) {
	t.Helper()
	if c.rank2EndsFirst {
		server.RecordExit(2, "rank 2 exited with code 3")
	}

	if c.rank0Leaves {
		server.announceClosing() // returns after flushTimeout, because rank 1 does not read
	}

	if err := server.Close(); err != nil {
		t.Error(err)
	}
}

func checkEndOfRankZero(t *testing.T, rank1 *Member, wantLeft bool) {
	t.Helper()
	isAnyEnded := func(ended []*EndedError) bool { return len(ended) > 0 }
	ended := rank1.AwaitEnded(testContext(t), []int{0}, isAnyEnded)
	if len(ended) != 1 || ended[0].HasLeft != wantLeft {
		t.Fatalf("AwaitEnded = %+v, want one error with HasLeft = %t", ended, wantLeft)
	}

	description := ended[0].Description
	saysLeft := strings.Contains(description, "has left")
	if saysLeft != wantLeft {
		t.Errorf("got description %q, want \"has left\" in it: %t", description, wantLeft)
	}
}

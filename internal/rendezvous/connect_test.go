package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// connectAndClose connects all ranks, exchanges a value between them, and closes all members. It
// fails unless the rank that serves the store waits for the others before it closes the store.
func connectAndClose(t *testing.T, worlds []World) {
	t.Helper()
	ctx := testContext(t)
	forEachRank(t, worlds, func(w World) error {
		store, member, err := Connect(ctx, w)
		if err != nil {
			return err
		}

		return errors.Join(exchangeValues(ctx, store, w), member.Close(), member.Close())
	})
}

func forEachRank(t *testing.T, worlds []World, f func(w World) error) {
	t.Helper()
	var ranks sync.WaitGroup
	for _, w := range worlds {
		ranks.Go(func() {
			if err := f(w); err != nil {
				t.Errorf("rank %d: %v", w.Rank, err)
			}
		})
	}

	ranks.Wait()
}

func exchangeValues(ctx context.Context, s *Client, w World) error {
	if w.Rank != 0 {
		// Do not wait for the sum, because rank 0 may already be closing its store.
		if _, err := s.Add(ctx, "others", 1); err != nil {
			return err
		}
	}

	if err := s.Set(ctx, fmt.Sprint(w.Rank), fmt.Append(nil, w.Rank)); err != nil {
		return err
	}

	for rank := range w.Size {
		value, err := s.Get(ctx, fmt.Sprint(rank))
		if err != nil {
			return err
		}

		if string(value) != fmt.Sprint(rank) {
			return fmt.Errorf("value of rank %d = %q; want %d", rank, value, rank)
		}
	}

	return nil
}

func worldsOf(size int, route Route) []World {
	worlds := make([]World, size)
	for rank := range worlds {
		worlds[rank] = World{
			Rank: rank, Size: size, LocalRank: rank, LocalSize: size, Source: SourceOptions,
			Route: route,
		}
	}

	return worlds
}

func TestRanksConnectRepeatedly(t *testing.T) {
	server, _ := serveOn(t, privateAddress(), "token")
	tcp, err := freeTCPAddress(t)
	if err != nil {
		t.Fatal(err)
	}

	rows := map[string][]World{
		"with the launcher's store": worldsOf(4, Route{
			Kind: RouteJoin, Endpoint: Endpoint{Address: server.Address(), Token: "token"},
		}),
		"with rank 0's Unix socket": worldsOf(4, Route{
			Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()},
		}),
		"with rank 0's TCP port": worldsOf(3, Route{
			Kind: RouteServe, Endpoint: Endpoint{Address: tcp, Token: "token"},
		}),
		"alone": worldsOf(1, Route{}),
	}
	for name, worlds := range rows {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				connectAndClose(t, worlds)
			}
		})
	}
}

// TestConnectRetriesIfStoreIsClosing connects while the store of an earlier attempt is still
// closing. Like a store that requires a token, that store closes each connection at the first
// query.
func TestConnectRetriesIfStoreIsClosing(t *testing.T) {
	address := privateAddress()
	old, err := net.Listen("unix", strings.TrimPrefix(address, unixScheme))
	if err != nil {
		t.Fatal(err)
	}

	oldErr := make(chan error, 1)
	go func() { oldErr <- hangUp(old) }()
	worlds := worldsOf(2, Route{Kind: RouteServe, Endpoint: Endpoint{Address: address}})
	connectAndClose(t, worlds)
	if err := <-oldErr; err != nil {
		t.Error(err)
	}
}

// hangUp completes the handshake with every client, and closes the listener and all connections as
// soon as one client sends a query.
func hangUp(l net.Listener) error {
	var serving sync.WaitGroup
	var conns []net.Conn
	for {
		conn, err := l.Accept()
		if err != nil {
			break // The first query has closed the listener.
		}

		conns = append(conns, conn)
		serving.Go(func() {
			greeting := make([]byte, 10) // VALIDATE and PING, each with 4 bytes
			_, err := io.ReadFull(conn, greeting)
			if err == nil {
				_, err = conn.Write(greeting[6:])
			}

			if err == nil {
				_, err = io.ReadFull(conn, greeting[:1])
			}

			if err == nil {
				_ = l.Close()
			}
		})
	}

	var errs []error
	for _, conn := range conns {
		errs = append(errs, conn.Close())
	}

	serving.Wait()
	return errors.Join(errs...)
}

func freeTCPAddress(t *testing.T) (string, error) {
	t.Helper()
	s, err := Listen("127.0.0.1:0", "x")
	if err != nil {
		return "", err
	}

	return s.Address(), s.Close()
}

func TestConnectReportsAbsentRanks(t *testing.T) {
	ctx, cancel := context.WithCancelCause(testContext(t))
	cause := errors.New("the deadline")
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}}
	worlds := worldsOf(5, route)
	present := []int{0, 2, 4}
	errs := make(chan error, len(present))
	for _, rank := range present {
		go func() {
			_, _, err := Connect(ctx, worlds[rank])
			errs <- err
		}()
	}

	// Wait until all three ranks have joined.
	probe, err := Dial(ctx, route.Endpoint)
	if err != nil {
		t.Fatal(err)
	}

	base := "symmem/none/0/5/1/joined/"
	if err := probe.Wait(ctx, base+"0", base+"2", base+"4"); err != nil {
		t.Fatal(err)
	}

	if err := probe.Close(); err != nil {
		t.Fatal(err)
	}

	cancel(cause)
	for range present {
		err := <-errs
		var absent *AbsentError
		if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{1, 3}) {
			t.Errorf("got %v, want an AbsentError for ranks 1 and 3", err)
		}
	}
}

// cutConn calls cancel, which cancels a context, while the answer to a join is in transit. It
// reads the answer only after the cancellation has aborted the connection's I/O, or after 20
// ms.
type cutConn struct {
	net.Conn
	cancel func()
	joined atomic.Bool
	cut    chan struct{}
}

func (c *cutConn) SetDeadline(deadline time.Time) error {
	err := c.Conn.SetDeadline(deadline)
	select {
	case c.cut <- struct{}{}:
	default:
	}

	return err
}

func (c *cutConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("/joined/")) {
		c.joined.Store(true)
	}

	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.joined.Swap(false) {
		c.cancel()
		select {
		case <-c.cut:
		case <-time.After(20 * time.Millisecond):
		}
	}

	return c.Conn.Read(b)
}

// TestDeadlineDuringJoinReportsAbsentRanks checks that joinAll looks up the absent ranks over a
// connection that it already has. It might not get a new connection, because rank 0 closes the
// store as soon as no client is connected.
func TestDeadlineDuringJoinReportsAbsentRanks(t *testing.T) {
	server, _ := serveOn(t, privateAddress(), "")
	ctx, cancel := context.WithCancelCause(testContext(t))
	cause := errors.New("the deadline")
	calls := 0
	client := newClient(server.Address(), func(ctx context.Context) (*link, error) {
		if calls++; calls > 2 {
			return nil, ErrLost
		}

		conn, err := net.Dial("unix", strings.TrimPrefix(server.Address(), unixScheme))
		if err != nil {
			return nil, err
		}

		cut := &cutConn{Conn: conn, cancel: func() { cancel(cause) }, cut: make(chan struct{})}
		return handshake(ctx, cut, Endpoint{Address: server.Address()})
	})
	m := &Member{world: worldsOf(3, Route{Kind: RouteServe})[2], jobClient: client}
	err := m.joinAndAwait(ctx)
	var absent *AbsentError
	if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{0, 1}) ||
		!errors.Is(err, cause) {
		t.Errorf("got %v, want an AbsentError for ranks 0 and 1", err)
	}

	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestConnectReportsMissingRankZero(t *testing.T) {
	w := worldsOf(2, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}})[1]
	expiredCtx, cancel := context.WithDeadline(testContext(t), time.Now())
	defer cancel()
	_, _, err := Connect(expiredCtx, w)
	if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*AbsentError)) {
		t.Errorf("after the deadline: got %v, want an error that blames no rank", err)
	}

	ctx, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
	defer cancel()
	_, _, err = Connect(ctx, w)
	var absent *AbsentError
	if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{0}) {
		t.Fatalf("got %v, want an AbsentError for rank 0", err)
	}

	if !strings.Contains(err.Error(), "rank 1 of 2 (options, store served by rank 0)") {
		t.Fatalf("got %v, want an error that describes the rank and the store", err)
	}
}

func TestRankZeroDoesNotWaitForEndedRanks(t *testing.T) {
	worlds := worldsOf(2, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}})
	ctx := testContext(t)
	dead := make(chan *Member, 1)
	go func() {
		_, member, err := Connect(ctx, worlds[1])
		if err != nil {
			t.Error(err)
		}

		dead <- member
	}()
	_, member, err := Connect(ctx, worlds[0])
	if err != nil {
		t.Fatal(err)
	}

	if err := closeLinks(<-dead); err != nil {
		t.Fatal(err)
	}

	if err := member.Close(); err != nil {
		t.Fatal(err)
	}

	if s := member.service.server; len(s.sessions) != 0 {
		t.Fatalf("%d sessions remain after Close, want 0", len(s.sessions))
	}
}

func TestAttemptsHaveSeparateKeys(t *testing.T) {
	server, client := serveOn(t, privateAddress(), "")
	for restart := range 2 {
		worlds := worldsOf(2, Route{
			Kind: RouteJoin, Endpoint: Endpoint{Address: server.Address()},
		})
		for rank := range worlds {
			worlds[rank].RunID, worlds[rank].Restart = "run", restart
		}

		connectAndClose(t, worlds)
		checkValue(t, client, fmt.Sprintf("symmem/run/%d/2/1/others", restart), "1")
	}
}

func TestListenAddress(t *testing.T) {
	rows := map[string]string{
		"localhost:1": "localhost:1", "127.0.0.1:1": "127.0.0.1:1", "[::1]:1": "[::1]:1",
		"node7:1": ":1", "10.0.0.1:1": ":1", "unix:@a:b": "unix:@a:b",
	}
	for address, want := range rows {
		if got := listenAddress(address); got != want {
			t.Errorf("listenAddress(%q) = %q, want %q", address, got, want)
		}
	}
}

func TestConnectDoesNotWaitForEndedRanks(t *testing.T) {
	for _, ended := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("rank %d", ended), func(t *testing.T) {
			server, _ := serveOn(t, privateAddress(), "token")
			worlds := worldsOf(3, Route{
				Kind: RouteJoin, Endpoint: Endpoint{Address: server.Address(), Token: "token"},
			})
			var ranks sync.WaitGroup
			for _, w := range worlds {
				if w.Rank == ended {
					continue
				}

				ranks.Go(func() {
					_, _, err := Connect(testContext(t), w)
					var absent *AbsentError
					if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{ended}) {
						t.Errorf("rank %d: got %v, want an AbsentError for rank %d", w.Rank, err, ended)
					}
				})
			}

			server.RecordExit(ended, fmt.Sprintf("rank %d exited with code 3", ended))
			ranks.Wait()
		})
	}
}

// TestRankMayLeaveWhileOthersReturnFromConnect connects and closes twice. A rank can thus leave
// while another is still in Connect. Neither Connect nor Close may return an error.
func TestRankMayLeaveWhileOthersReturnFromConnect(t *testing.T) {
	server, _ := serveOn(t, privateAddress(), "token")
	worlds := worldsOf(3, Route{
		Kind: RouteJoin, Endpoint: Endpoint{Address: server.Address(), Token: "token"},
	})
	connectAndClose(t, worlds)
	connectAndClose(t, worlds)
}

// TestGuardedContextEndsWithRank calls Guard a second time after it has stopped the first
// guard. The second context must be canceled when the launcher reports that rank 1 has ended.
func TestGuardedContextEndsWithRank(t *testing.T) {
	server, _ := serveOn(t, privateAddress(), "token")
	worlds := worldsOf(2, Route{
		Kind: RouteJoin, Endpoint: Endpoint{Address: server.Address(), Token: "token"},
	})
	ctx := testContext(t)
	var ranks sync.WaitGroup
	for _, w := range worlds {
		ranks.Go(func() {
			store, member, err := Connect(ctx, w)
			if err != nil {
				t.Error(err)
				return
			}

			_, stop := member.Guard(ctx, []int{0, 1})
			stop()
			guarded, stop := member.Guard(ctx, []int{0, 1})
			defer stop()
			if w.Rank == 1 {
				if err := member.Close(); err != nil {
					t.Error(err)
				}

				return
			}

			server.RecordExit(1, "rank 1 was killed by signal 9")
			_, err = store.Get(guarded, "never set")
			var ended *EndedError
			if !errors.As(err, &ended) || ended.Rank != 1 {
				t.Errorf("got %v, want an EndedError for rank 1", err)
			}

			if err := member.Close(); err != nil {
				t.Error(err)
			}
		})
	}

	ranks.Wait()
}

// TestRanksConnectAheadOfRankZero connects and closes repeatedly on ranks that do not wait for each
// other. Ranks 1 and 2 reach the store of the previous round while rank 0 closes it, and can leave
// while another rank is still in Connect.
func TestRanksConnectAheadOfRankZero(t *testing.T) {
	worlds := worldsOf(3, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}})
	ctx := testContext(t)
	forEachRank(t, worlds, func(w World) error {
		for round := range 40 {
			_, m, err := Connect(ctx, w)
			if err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}

			if err := m.Close(); err != nil {
				return fmt.Errorf("closing round %d: %w", round, err)
			}
		}

		return nil
	})
}

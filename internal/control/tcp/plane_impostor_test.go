package tcp

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// hangTimeout bounds waits that should be short. It expires only if the code under test hangs.
const hangTimeout = 60 * time.Second

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// duo returns the configuration of a group of two ranks.
func duo(rank int) driver.GroupConfig {
	return driver.GroupConfig{ID: "duo", Ranks: []int{4, 7}, Rank: rank}
}

func TestUnauthenticatedConnectionsAreIgnored(t *testing.T) {
	i := newImpostor(t)
	joined := make(chan error, 1)
	go func() {
		p, err := Join(i.ctx, i.config())
		if err == nil {
			err = p.Close()
		}

		joined <- err
	}()
	right := i.joiner().token
	i.dial()
	silent := i.conn // sends no hello
	defer silent.Close()
	checkRejected := func(name string, hello func(net.Conn) []byte) {
		i.dial()
		_, err := i.conn.Write(hello(i.conn))
		check(t, err)
		i.checkClosed(name)
	}
	hello := func(secret token, rank, target int) func(net.Conn) []byte {
		j := &joiner{cfg: Config{Group: driver.GroupConfig{Rank: rank}}, token: secret}
		return func(conn net.Conn) []byte { return j.encodeHello(target, 1, conn) }
	}
	wrong := right
	wrong[tokenHalf-1] ^= 1
	checkRejected("HTTP", func(net.Conn) []byte {
		return []byte(strings.Repeat("GET / HTTP/1.1\r\n", 8)[:helloBytes])
	})
	checkRejected("a wrong token", hello(wrong, 1, 0))
	checkRejected("the listener's rank", hello(right, 0, 0))
	checkRejected("a rank outside the group", hello(right, 2, 0))
	checkRejected("a negative rank", hello(right, -1, 0))
	checkRejected("a hello to another rank", hello(right, 1, 1))
	p, err := Join(i.ctx, Config{Store: i.store, Group: duo(1), Timeout: hangTimeout})
	check(t, err)
	check(t, p.Close())
	check(t, <-joined)
}

// TestSilentConnectionsDoNotDelayJoin opens far more connections than rank 0 keeps in their
// handshake. Rank 1 must join long before these time out.
func TestSilentConnectionsDoNotDelayJoin(t *testing.T) {
	i := newImpostor(t)
	joined := make(chan error, 1)
	go func() {
		p, err := Join(i.ctx, i.config())
		if err == nil {
			err = p.Close()
		}

		joined <- err
	}()
	for range 4 * maxUnauthenticated {
		i.dial()
		defer i.conn.Close()
	}

	begin := time.Now()
	p, err := Join(i.ctx, Config{Store: i.store, Group: duo(1), Timeout: hangTimeout})
	if took := time.Since(begin); took >= handshakeTimeout {
		t.Errorf("Join took %v, want less than %v", took, handshakeTimeout)
	}

	check(t, err)
	check(t, p.Close())
	check(t, <-joined)
}

func TestJoinFailsIfPeerLacksToken(t *testing.T) {
	i := newImpostor(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	j := &joiner{cfg: i.config()}
	check(t, j.shareToken(i.ctx))
	check(t, i.store.Set(i.ctx, j.cfg.key("0"), []byte(l.Addr().String())))
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = io.ReadFull(conn, make([]byte, helloBytes))
			_, _ = conn.Write(make([]byte, tokenHalf))
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}()
	_, err = Join(i.ctx, Config{Store: i.store, Group: duo(1), Timeout: hangTimeout})
	if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "rank 4") {
		t.Errorf("got %v, want an error about the token of rank 4", err)
	}
}

// TestJoinFailsSoonIfProxyClosesConnections connects through a proxy that accepts connections and
// closes them, because it cannot reach the rank.
func TestJoinFailsSoonIfProxyClosesConnections(t *testing.T) {
	t.Parallel()
	i := newImpostor(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	j := &joiner{cfg: i.config()}
	check(t, j.shareToken(i.ctx))
	check(t, i.store.Set(i.ctx, j.cfg.key("0"), []byte(l.Addr().String())))
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}

			_ = conn.Close()
		}
	}()
	begin := time.Now()
	_, err = Join(i.ctx, Config{Store: i.store, Group: duo(1), Timeout: hangTimeout})
	if err == nil || !strings.Contains(err.Error(), "to rank 4") ||
		!strings.Contains(err.Error(), "each connection ended before the rank answered") {
		t.Errorf("got %v, want an error about connections to rank 4 that ended", err)
	}

	if took := time.Since(begin); took >= dialTimeout {
		t.Errorf("Join took %v, want less than %v", took, dialTimeout)
	}
}

func TestInvalidMessageIsReportedWithRank(t *testing.T) {
	for name, misbehave := range map[string]func(i *impostor){
		"an invalid frame": func(i *impostor) {
			_, err := i.conn.Write([]byte(strings.Repeat("x", headerBytes)))
			check(i.t, err)
		},
		"a step out of order": func(i *impostor) { i.send(kindPost, trackControl, 7, nil) },
		"a replayed step": func(i *impostor) {
			i.send(kindPost, trackControl, 2, []byte("once"))
			i.send(kindPost, trackControl, 2, []byte("twice"))
		},
		"a repeated fault": func(i *impostor) {
			i.send(kindFail, "", 0, anyStatus())
			i.send(kindFail, "", 0, anyStatus())
		},
		"a payload of four gigabytes": func(i *impostor) {
			_, err := i.conn.Write(corruptFrame(4, 255, 255, 255, 255))
			check(i.t, err)
		},
		"random bytes": func(i *impostor) {
			noise := make([]byte, 1<<16)
			_, err := rand.NewChaCha8([32]byte{43}).Read(noise)
			check(i.t, err)
			_, _ = i.conn.Write(noise) // rank 0 closes the connection meanwhile
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := newImpostor(t)
			p := i.joinVictim()
			misbehave(i)
			<-p.Failed()
			if err := p.Cause(); !errors.Is(err, ErrProtocol) ||
				!strings.Contains(err.Error(), "rank 7") {
				t.Errorf("got %v, want ErrProtocol and a mention of rank 7", err)
			}
		})
	}
}

func TestConnectionClosedWithoutLeaveMeansLostRank(t *testing.T) {
	exchange := func(i *impostor, p *Plane) error {
		_, err := p.Exchange(i.ctx, driver.LaneControl, nil)
		return err
	}
	i := newImpostor(t)
	p := i.joinVictim()
	check(t, i.conn.Close())
	var lost *driver.RankLostError
	if err := exchange(i, p); !errors.As(err, &lost) || len(lost.Ranks) != 1 || lost.Ranks[0] != 7 {
		t.Errorf("got %v, want a RankLostError about rank 7", err)
	}

	i = newImpostor(t)
	p = i.joinVictim()
	b := status{}
	i.send(kindLeave, "", 0, b.encode(time.Now()))
	check(t, i.conn.Close())
	var deadlock *driver.DeadlockError
	if err := exchange(i, p); !errors.As(err, &deadlock) {
		t.Errorf("got %v, want a DeadlockError", err)
	}
}

// anyStatus returns the encoded status of a rank that has submitted a collective.
func anyStatus() []byte {
	b := status{submitted: 1}
	return b.encode(time.Now())
}

// In TestFaultDoesNotEndStepThatPeerCompleted, the impostor's post arrives after its fault, as
// a third rank's post may do in larger groups.
func TestFaultDoesNotEndStepThatPeerCompleted(t *testing.T) {
	for name, c := range map[string]struct {
		completed uint64
		want      error
	}{
		"the peer had seen the step complete": {2, nil},
		"the peer had not seen it complete":   {1, driver.ErrFault},
	} {
		t.Run(name, func(t *testing.T) {
			i := newImpostor(t)
			p := i.joinVictim()
			result := make(chan error, 1)
			go func() {
				_, err := p.Exchange(i.ctx, driver.LaneControl, []byte("here"))
				result <- err
			}()
			i.await(kindPost)
			i.send(kindComplete, trackControl, c.completed, nil)
			i.send(kindFail, "", 0, anyStatus())
			i.await(kindFailAck)
			i.send(kindPost, trackControl, 2, []byte("late"))
			i.send(kindFailAck, "", 0, nil)
			if err := <-result; !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestPeerStatusProvesDeadlock(t *testing.T) {
	exchange := func(i *impostor, p *Plane) error {
		_, err := p.Exchange(i.ctx, driver.LaneControl, nil)
		return err
	}
	work := func(i *impostor, p *Plane) error {
		return p.Await(i.ctx, control.Wait{
			Ticket: p.Submit(), CallText: func() string { return "work" },
			Done: func() bool { return false },
		})
	}
	for name, c := range map[string]struct {
		peer status
		call func(i *impostor, p *Plane) error
	}{
		"this rank is in an exchange, the peer in work": {
			status{submitted: 1, awaitedTicket: 1}, exchange,
		},
		"this rank is in work, the peer in an exchange": {status{awaitedStep: 2}, work},
	} {
		t.Run(name, func(t *testing.T) {
			i := newImpostor(t)
			p := i.joinVictim()
			i.send(kindStatus, "", 0, c.peer.encode(time.Now()))
			var deadlock *driver.DeadlockError
			if err := c.call(i, p); !errors.As(err, &deadlock) {
				t.Errorf("got %v, want a DeadlockError", err)
			}
		})
	}
}

func TestStatusShowsBothWaits(t *testing.T) {
	now := time.Now()
	exchange := &waitState{isAgreement: true, step: 3, begin: now}
	work := &waitState{collective: 4, operation: driver.AllGather, begin: now.Add(-time.Second)}
	earlier := &waitState{collective: 2, begin: now}
	want := status{0, 4, driver.AllGather, 3, work.begin}
	for _, waits := range [][]*waitState{
		{exchange, work, earlier}, {work, exchange, earlier}, {earlier, work, exchange},
	} {
		p := groupState{waits: waits}
		if got := p.ownStatus(); got != want {
			t.Errorf("status() = %+v, want %+v", got, want)
		}
	}
}

func TestSubmissionsAreSent(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	for range 3 {
		p.Submit()
	}

	for submitted := uint64(0); submitted < 3; {
		m := i.await(kindStatus)
		submitted = decodeStatus(m.payload, time.Now()).submitted
	}
}

func TestRankIsLateOnlyAfterStatusDelay(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	begin := time.Now()
	w := p.newWorkWait(control.Wait{
		Ticket: p.Submit(), CallText: func() string { return "work" },
	}, begin)
	judge := func(waited time.Duration) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stallDetector = stallDetector{last: begin.Add(waited)}
		return p.judgeWait(w, begin.Add(waited))
	}
	if err := judge(hangTimeout + statusInterval); err != nil {
		t.Errorf("before statusDelay: got %v, want no error", err)
	}

	var late *driver.TimeoutError
	if err := judge(hangTimeout + 2*statusInterval); !errors.As(err, &late) {
		t.Errorf("got %v, want a TimeoutError", err)
	}

	i.send(kindFail, "", 0, anyStatus())
	i.await(kindFailAck)
	if err := judge(2 * hangTimeout); err != nil {
		t.Errorf("after a rank that had submitted the work failed: got %v, want no error", err)
	}

	w.collective++
	if err := judge(0); !errors.Is(err, driver.ErrFault) {
		t.Errorf("got %v, want an error about the failed rank", err)
	}
}

// TestStoppedRankReadsMessagesBeforeReportingTimeouts calls judgeWait and tick with the times of
// a rank that was stopped for an hour.
func TestStoppedRankReadsMessagesBeforeReportingTimeouts(t *testing.T) {
	begin := time.Now()
	p := groupState{records: make([]rankRecord, 2), stallDetector: stallDetector{last: begin}}
	p.cfg.Group.Ranks, p.cfg.Group.Timeout = []int{0, 1}, driver.NewLimit(hangTimeout)
	w := p.newWorkWait(control.Wait{Ticket: 1, CallText: func() string { return "work" }}, begin)
	now := begin.Add(time.Hour)
	for tick := range catchUpTicks + 1 {
		if err := p.judgeWait(w, now); err != nil {
			t.Errorf("before tick %d: got %v, want no error", tick, err)
		}

		p.tick(now)
		now = now.Add(statusInterval)
	}

	var late *driver.TimeoutError
	if err := p.judgeWait(w, now); !errors.As(err, &late) {
		t.Errorf("got %v, want a TimeoutError", err)
	}
}

func TestUnreadMessagesDoNotDelayClose(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	large := make([]byte, driver.MaxPayload)
	ctx, cancel := context.WithCancel(i.ctx)
	cancel()
	// The reports do not fit into the connection's buffers, and the impostor does not read them.
	for range maxReportBytes / driver.MaxPayload {
		_, err := p.Exchange(ctx, driver.LaneFault, large)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	}

	if _, err := p.Exchange(ctx, driver.LaneFault, large); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("got %v, want ErrClosed, because the log is full", err)
	}

	check(t, p.Close())
}

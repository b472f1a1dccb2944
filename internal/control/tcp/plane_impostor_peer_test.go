package tcp

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/rendezvous"
)

// impostor pretends to be group rank 1 of a group of two. It has the group's token, but follows
// the protocol only as far as a test requires.
type impostor struct {
	t     *testing.T
	ctx   context.Context
	store driver.Store
	conn  net.Conn
}

func newImpostor(t *testing.T) *impostor {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	store := rendezvous.NewLocal()
	t.Cleanup(func() {
		cancel()
		check(t, store.Close())
	})
	return &impostor{t: t, ctx: ctx, store: store}
}

// config returns the configuration of rank 0, to which the impostor connects.
func (i *impostor) config() Config {
	return Config{Store: i.store, Group: duo(0), Timeout: hangTimeout}
}

// joinVictim joins the group as rank 0 and connects the impostor to it as rank 1. It returns
// rank 0's plane.
func (i *impostor) joinVictim() *Plane {
	i.t.Helper()
	joined := make(chan error, 1)
	var p *Plane
	go func() {
		var err error
		p, err = Join(i.ctx, i.config())
		joined <- err
	}()
	i.dial()
	i.authenticate(i.joiner().token)
	i.send(kindPost, trackControl, 1, encodeRanks(duo(1)))
	check(i.t, <-joined)
	i.t.Cleanup(func() {
		_ = i.conn.Close()
		check(i.t, p.Close())
	})
	want := string(encodeRanks(duo(0))) + control.HostName()
	if m := i.await(kindPost); string(m.payload) != want {
		i.t.Errorf("fingerprint from rank 0 = %q, want %q", m.payload, want)
	}

	return p
}

func (i *impostor) joiner() *joiner {
	i.t.Helper()
	j := &joiner{cfg: Config{Store: i.store, Group: duo(1)}}
	check(i.t, j.shareToken(i.ctx))
	return j
}

func (i *impostor) dial() {
	i.t.Helper()
	address, err := i.store.Get(i.ctx, i.joiner().cfg.key("0"))
	check(i.t, err)
	i.conn, err = net.Dial("tcp", strings.Fields(string(address))[0])
	check(i.t, err)
	check(i.t, i.conn.SetDeadline(time.Now().Add(hangTimeout)))
}

func (i *impostor) authenticate(secret token) {
	i.t.Helper()
	_, err := i.conn.Write(i.joiner().encodeHello(0, 1, i.conn))
	check(i.t, err)
	var answer [tokenHalf]byte
	_, err = io.ReadFull(i.conn, answer[:])
	check(i.t, err)
	if string(answer[:]) != string(secret[tokenHalf:]) {
		i.t.Fatalf("rank 0 sent %x instead of its half of the token", answer)
	}
}

func (i *impostor) send(k kind, t track, step uint64, payload []byte) {
	i.t.Helper()
	m := message{kind: k, track: t, step: step, payload: payload}
	_, err := i.conn.Write(m.encode())
	check(i.t, err)
}

// await reads frames up to and including one of the given kind.
func (i *impostor) await(k kind) message {
	i.t.Helper()
	for {
		m, err := readFrame(i.conn)
		check(i.t, err)
		if m.kind == k {
			return m
		}
	}
}

// checkClosed checks that rank 0 closes the connection without an answer.
func (i *impostor) checkClosed(hello string) {
	i.t.Helper()
	if n, err := i.conn.Read(make([]byte, 1)); n != 0 || err == nil {
		i.t.Errorf("%s: Read = %d, %v; want a closed connection", hello, n, err)
	}

	check(i.t, i.conn.Close())
}

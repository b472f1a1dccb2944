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

// Tests with an impostor check how rank 0, the victim, reacts to each message of rank 1. The victim
// runs the code under test. The impostor is a test that sends the messages of rank 1:
//
//   - To connect to the victim, it sends a hello, which contains its half of the group's token. The
//     victim answers with the other half.
//   - Both then send a post, a message for a step of an exchange. The first one contains the ranks
//     of the group, so that the victim can check that both mean the same group.

// impostor pretends to be rank 1 of a group of two ranks.
type impostor struct {
	t     *testing.T
	ctx   context.Context // ends after hangTimeout
	store driver.Store    // of the group, which contains the victim's address
	conn  net.Conn        // to the victim; set by dial
}

// newImpostor returns an impostor that is not connected.
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

// config returns the configuration of the victim.
func (i *impostor) config() Config {
	return Config{Store: i.store, Group: duo(0), Timeout: hangTimeout}
}

// joinVictim makes the victim join the group, and connects the impostor to it. It returns the
// victim's plane.
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
		i.t.Errorf("first post of rank 0 = %q, want %q", m.payload, want)
	}

	return p
}

// joiner returns a joiner for rank 1, which has the token of the group.
func (i *impostor) joiner() *joiner {
	i.t.Helper()
	j := &joiner{cfg: Config{Store: i.store, Group: duo(1)}}
	check(i.t, j.shareToken(i.ctx))
	return j
}

// dial connects to the victim, but sends nothing.
func (i *impostor) dial() {
	i.t.Helper()
	value, err := i.store.Get(i.ctx, i.joiner().cfg.key("0")) // begins with the victim's address
	check(i.t, err)
	address := strings.Fields(string(value))[0]
	i.conn, err = net.Dial("tcp", address)
	check(i.t, err)
	check(i.t, i.conn.SetDeadline(time.Now().Add(hangTimeout)))
}

// authenticate sends a hello, and checks that the victim answers with the second half of the token.
func (i *impostor) authenticate(secret token) {
	i.t.Helper()
	_, err := i.conn.Write(i.joiner().encodeHello(0, 1, i.conn))
	check(i.t, err)
	var answer [tokenHalf]byte
	_, err = io.ReadFull(i.conn, answer[:])
	check(i.t, err)
	if string(answer[:]) != string(secret[tokenHalf:]) {
		i.t.Fatalf("rank 0 sent %x, want the second half of the token", answer)
	}
}

// send sends a message to the victim.
func (i *impostor) send(k kind, t track, step uint64, payload []byte) {
	i.t.Helper()
	m := message{kind: k, track: t, step: step, payload: payload}
	_, err := i.conn.Write(m.encode())
	check(i.t, err)
}

// await reads messages of the victim until one has the given kind, and returns that one.
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

// checkClosed checks that the victim closes the connection without an answer to a hello, which is
// described in errors. It then closes this end, too.
func (i *impostor) checkClosed(hello string) {
	i.t.Helper()
	if n, err := i.conn.Read(make([]byte, 1)); n != 0 || err == nil {
		i.t.Errorf("%s: Read = %d, %v; want a closed connection", hello, n, err)
	}

	check(i.t, i.conn.Close())
}

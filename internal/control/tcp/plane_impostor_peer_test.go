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

// impostor plays rank 1 in a group of two ranks. Tests make it send invalid or unusual messages to
// rank 0, the victim, which runs the code under test.
type impostor struct {
	t     *testing.T
	ctx   context.Context // ends after hangTimeout
	store driver.Store    // contains the victim's address
	conn  net.Conn        // to the victim; set by dial
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

// config returns the victim's configuration.
func (i *impostor) config() Config {
	return Config{Store: i.store, Group: duo(0), Timeout: hangTimeout}
}

// joinVictim performs a correct join of the victim and the impostor. It returns the victim's plane.
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

// joiner returns a joiner for rank 1 with the group's token.
func (i *impostor) joiner() *joiner {
	i.t.Helper()
	j := &joiner{cfg: Config{Store: i.store, Group: duo(1)}}
	check(i.t, j.shareToken(i.ctx))
	return j
}

func (i *impostor) dial() {
	i.t.Helper()
	addresses, err := i.store.Get(i.ctx, i.joiner().addressKey(0))
	check(i.t, err)
	firstAddress := strings.Fields(string(addresses))[0]
	i.conn, err = net.Dial("tcp", firstAddress)
	check(i.t, err)
	check(i.t, i.conn.SetDeadline(time.Now().Add(hangTimeout)))
}

// authenticate sends a hello and checks that the victim answers with the second half of secret.
func (i *impostor) authenticate(secret token) {
	i.t.Helper()
	const victim, attempt = 0, 1
	_, err := i.conn.Write(i.joiner().encodeHello(victim, attempt, i.conn))
	check(i.t, err)
	var answer [tokenHalf]byte
	_, err = io.ReadFull(i.conn, answer[:])
	check(i.t, err)
	if string(answer[:]) != string(secret[tokenHalf:]) {
		i.t.Fatalf("rank 0 sent %x, want the second half of the token", answer)
	}
}

func (i *impostor) send(k kind, t track, step uint64, payload []byte) {
	i.t.Helper()
	m := message{kind: k, track: t, step: step, payload: payload}
	_, err := i.conn.Write(m.encode())
	check(i.t, err)
}

// await returns the victim's next message of a kind, and drops earlier messages of other kinds.
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

// checkClosed checks that the victim closes the connection without answering.
func (i *impostor) checkClosed(helloName string) {
	i.t.Helper()
	if n, err := i.conn.Read(make([]byte, 1)); n != 0 || err == nil {
		i.t.Errorf("%s: Read = %d, %v; want a closed connection", helloName, n, err)
	}

	check(i.t, i.conn.Close())
}

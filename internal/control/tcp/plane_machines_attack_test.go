package tcp

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"symmem/internal/netlab"
)

// A machine without ranks attacks the store while ranks join and run.
func TestAttackOnStoreIsIgnored(t *testing.T) {
	t.Parallel()
	c := newIdleCluster(t, netlab.Config{Machines: 3}, 2)
	c.idle = 1
	store := netip.AddrPortFrom(c.lab.Machines[0].Addresses[0], 29500)
	a := startAttack(c, func() []netip.AddrPort { return []netip.AddrPort{store} })
	c.start(machineRank{Timeout: hangTimeout})
	a.awaitConnections(c.t)
	c.awaitRounds()
	c.finish()
}

// A machine without ranks attacks all ports of the others while ranks wait for the last rank to
// join. After that, only the store's port must be open.
func TestAttackOnRanksIsIgnored(t *testing.T) {
	t.Parallel()
	c := newIdleCluster(t, netlab.Config{Machines: 3}, 2)
	c.idle = 1
	listeningAddresses := func() (all []netip.AddrPort) {
		for _, m := range c.lab.Machines[:2] {
			for _, port := range listeningPorts(m) {
				all = append(all, netip.AddrPortFrom(m.Addresses[0], port))
			}
		}
		return all
	}
	c.lastWaits = true
	c.start(machineRank{Timeout: hangTimeout})
	last := c.ranks[len(c.ranks)-1]
	// Ranks 0 to 2 listen, and rank 0 also serves the store.
	for end := time.Now().Add(hangTimeout); len(listeningAddresses()) < len(c.ranks); {
		if time.Now().After(end) {
			c.t.Fatalf("the ranks listen at %v, want %d addresses", listeningAddresses(), len(c.ranks))
		}
		<-time.After(10 * time.Millisecond)
	}
	a := startAttack(c, listeningAddresses)
	a.awaitConnections(c.t)
	_, _ = io.WriteString(last.input, "join\n")
	c.awaitAll(eventNamed(eventJoined))
	if open := listeningAddresses(); len(open) != 1 || open[0].Port() != 29500 {
		c.t.Errorf("after all ranks have joined, %v are open, want only the store's port", open)
	}
	c.awaitRounds()
	c.finish()
}

// listeningPorts lists the TCP ports on which processes of a machine listen.
func listeningPorts(m *netlab.Machine) (ports []uint16) {
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", m.Thread, name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			const local, state, listen = 1, 3, "0A"
			if len(fields) <= state || fields[state] != listen {
				continue
			}
			_, digits, _ := strings.Cut(fields[local], ":")
			if port, err := strconv.ParseUint(digits, 16, 16); err == nil {
				ports = append(ports, uint16(port))
			}
		}
	}
	return ports
}

// attack connects to addresses until it is stopped. It sends invalid data on some connections and
// keeps the others open. It has no token.
type attack struct {
	enough chan struct{} // closed after attackConnectionCount connections
	stop   chan struct{}
}

// attackConnectionCount exceeds the number of silent connections that the store and a rank keep
// open.
const attackConnectionCount = 600

// startAttack starts an attack from the last machine. The attack ends with the test.
func startAttack(c *cluster, targets func() []netip.AddrPort) *attack {
	a := &attack{make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.run(c.lab.Machines[len(c.lab.Machines)-1], targets)
	}()
	c.t.Cleanup(func() {
		close(a.stop)
		<-done
	})
	return a
}

func (a *attack) awaitConnections(t testing.TB) {
	t.Helper()
	select {
	case <-a.enough:
	case <-time.After(hangTimeout):
		t.Fatalf("the attack could not open %d connections", attackConnectionCount)
	}
}

func (a *attack) run(from *netlab.Machine, targets func() []netip.AddrPort) {
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}()
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for count := 0; ; {
		select {
		case <-a.stop:
			return
		case <-pause.C:
		}
		for _, target := range targets() {
			var conn net.Conn
			err := from.Do(func() (err error) {
				conn, err = net.DialTimeout("tcp", target.String(), 100*time.Millisecond)
				return err
			})
			if err != nil {
				continue
			}
			if count++; count == attackConnectionCount {
				close(a.enough)
			}
			text := attackTexts[count%len(attackTexts)]
			_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = io.WriteString(conn, text)
			if len(open) < attackConnectionCount && (count%2 == 0 || len(text) < helloBytes) {
				open = append(open, conn)
				continue
			}
			_ = conn.Close()
		}
	}
}

// attackTexts contains an empty text, an incomplete hello (a rank's first message), other
// protocols, random bytes, messages without a hello, and hellos with wrong tokens.
var attackTexts = []string{
	"", protocolName, "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\xff", 4096),
	protocolName + strings.Repeat("x", 200),
	"\x00\x2d\xc8\x1b\x3c\x09", // VALIDATE of PyTorch's store with a wrong token
	randomText(1 << 16),
	string(encodeFrame(kindFail, "")) + string(encodeFrame(kindPost, trackControl)),
	string(corruptFrame(4, 255, 255, 255, 255)),
	helloWithWrongToken(1, 0), helloWithWrongToken(3, 1), helloWithWrongToken(1<<31, 0),
}

func randomText(bytes int) string {
	text := make([]byte, bytes)
	_, _ = rand.NewChaCha8([32]byte{43}).Read(text)
	return string(text)
}

// helloWithWrongToken returns a rank's first message, but with a wrong token.
func helloWithWrongToken(rank, target uint32) string {
	return string(slices.Concat([]byte(protocolName), make([]byte, tokenHalf),
		[]byte{byte(rank), 0, 0, byte(rank >> 24), byte(target), 0, 0, 0, 1, 0, 0, 0},
		make([]byte, 2*addressBytes)))
}

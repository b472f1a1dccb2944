package tcp

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"symmem/internal/netlab"
)

// Tests in this file use a cluster: ranks as processes on simulated machines, which are network
// namespaces on this host. Rank 0 serves a store, from which ranks get the group's secret token. A
// rank without the token is not part of the job, and must not disturb it.

// newAttackedCluster returns a cluster of three machines. The last one runs no ranks: it is the
// attacker. The ranks of the other machines have not been started.
func newAttackedCluster(t *testing.T) *cluster {
	t.Helper()
	c := newIdleCluster(t, netlab.Config{Machines: 3}, ranksPerMachine)
	c.idle = 1 // number of machines without ranks
	return c
}

// A machine without ranks attacks the store while ranks join and run. All ranks must be able to
// join and run nevertheless.
func TestAttackOnStoreIsIgnored(t *testing.T) {
	t.Parallel()
	c := newAttackedCluster(t)
	store := netip.AddrPortFrom(c.lab.Machines[0].Addresses[0], storePort)
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
	c := newAttackedCluster(t)
	listeningAddresses := func() (all []netip.AddrPort) {
		for _, m := range c.lab.Machines[:2] { // those with ranks
			for _, port := range listeningPorts(m) {
				all = append(all, netip.AddrPortFrom(m.Addresses[0], port))
			}
		}

		return all
	}
	c.lastWaits = true
	c.start(machineRank{Timeout: hangTimeout})
	lastRank := c.ranks[len(c.ranks)-1]
	// Rank 0 listens on two ports, because it also serves the store. Ranks 1 and 2 listen on one
	// each. Rank 3 waits. So there are as many ports as ranks.
	wantCount := len(c.ranks)
	deadline := time.Now().Add(hangTimeout)
	for len(listeningAddresses()) < wantCount {
		if time.Now().After(deadline) {
			c.t.Fatalf("the ranks listen at %v, want %d addresses", listeningAddresses(), wantCount)
		}

		<-time.After(10 * time.Millisecond)
	}

	a := startAttack(c, listeningAddresses)
	a.awaitConnections(c.t)
	_, _ = io.WriteString(lastRank.input, "join\n") // fails if the rank has ended; see awaitAll
	c.awaitAll(eventNamed(eventJoined))
	if open := listeningAddresses(); len(open) != 1 || open[0].Port() != storePort {
		c.t.Errorf("after all ranks have joined, %v are open, want only the store's port", open)
	}

	c.awaitRounds()
	c.finish()
}

// listeningPorts lists the TCP ports on which processes of a machine listen, as the kernel reports
// them.
func listeningPorts(m *netlab.Machine) (ports []uint16) {
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", m.Thread, name))
		if err != nil {
			continue
		}

		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			const localIndex, stateIndex = 1, 3
			const listening = "0A"
			if len(fields) <= stateIndex || fields[stateIndex] != listening {
				continue
			}

			_, digits, _ := strings.Cut(fields[localIndex], ":") // address:port, in hexadecimal
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
	a := &attack{enough: make(chan struct{}), stop: make(chan struct{})}
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

// awaitConnections waits for attackConnectionCount connections. It fails the test if that takes
// longer than hangTimeout.
func (a *attack) awaitConnections(t testing.TB) {
	t.Helper()
	select {
	case <-a.enough:
	case <-time.After(hangTimeout):
		t.Fatalf("the attack could not open %d connections", attackConnectionCount)
	}
}

// run connects from a machine to each target about once in a millisecond, until the attack is
// stopped. targets returns the addresses that exist at the moment.
func (a *attack) run(from *netlab.Machine, targets func() []netip.AddrPort) {
	var open []net.Conn // connections to keep open
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
			// A target still waits for the rest if the text is shorter than a hello.
			shouldKeep := count%2 == 0 || len(text) < helloBytes
			if shouldKeep && len(open) < attackConnectionCount {
				open = append(open, conn)
			} else {
				_ = conn.Close()
			}
		}
	}
}

// attackTexts contains the data that the attack sends. A hello is a rank's first message. It begins
// with protocolName.
var attackTexts = []string{
	"",
	protocolName, // an incomplete hello
	"GET / HTTP/1.1\r\n\r\n",
	strings.Repeat("\xff", 4096),
	protocolName + strings.Repeat("x", 200),
	"\x00\x2d\xc8\x1b\x3c\x09", // VALIDATE of PyTorch's store with a wrong token
	randomText(1 << 16),
	// Messages without a hello.
	string(encodeFrame(kindFail, "")) + string(encodeFrame(kindPost, trackControl)),
	string(corruptFrame(4, 255, 255, 255, 255)), // a payload of 4 GiB
	// The first two are from ranks to their peers. No job has as many ranks as the third claims.
	helloWithWrongToken(1, 0),
	helloWithWrongToken(3, 1),
	helloWithWrongToken(1<<31, 0),
}

// randomText returns the same random bytes in each run.
func randomText(length int) string {
	text := make([]byte, length)
	seed := [32]byte{43}
	_, _ = rand.NewChaCha8(seed).Read(text) // never fails
	return string(text)
}

// helloWithWrongToken returns the hello of a rank to another, but with a token and addresses that
// are all zeros.
func helloWithWrongToken(rank, target uint32) string {
	const attempt = 1
	hello := append([]byte(protocolName), make([]byte, tokenHalf)...)
	for _, number := range []uint32{rank, target, attempt} {
		hello = binary.LittleEndian.AppendUint32(hello, number)
	}

	return string(hello) + strings.Repeat("\x00", 2*addressBytes)
}

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

// Strangers must not be able to disturb a job. The tests simulate three machines, which are network
// namespaces on this host. Machines 0 and 1 run two ranks each, as processes that form a group.
// Rank 0 also serves a store, from which the ranks get the secret token of the group. Machine 2 has
// no token. It attacks: it opens many connections to the other machines, and sends invalid data on
// some of them. The ranks must join the group and exchange data as usual.

// newAttackedCluster returns the three machines. The ranks have not been started.
func newAttackedCluster(t *testing.T) *cluster {
	t.Helper()
	c := newIdleCluster(t, netlab.Config{Machines: 3}, ranksPerMachine)
	c.idle = 1 // number of machines without ranks: the last one
	return c
}

// TestAttackOnStoreIsIgnored attacks the store while ranks join and exchange data.
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

// TestAttackOnRanksIsIgnored attacks all ports of the other machines while ranks 0 to 2 wait for
// rank 3 to join. After all ranks have joined, only the port of the store must be open.
func TestAttackOnRanksIsIgnored(t *testing.T) {
	t.Parallel()
	c := newAttackedCluster(t)
	c.lastWaits = true // rank 3 waits for input before it joins
	c.start(machineRank{Timeout: hangTimeout})
	lastRank := c.ranks[len(c.ranks)-1]
	c.awaitPorts()
	a := startAttack(c, c.openAddresses)
	a.awaitConnections(c.t)
	_, _ = io.WriteString(lastRank.input, "join\n") // fails if the rank has ended; see awaitAll
	c.awaitAll(eventNamed(eventJoined))
	open := c.openAddresses()
	isOnlyStore := len(open) == 1 && open[0].Port() == storePort
	if !isOnlyStore {
		c.t.Errorf("after all ranks have joined, %v are open, want only the store's port", open)
	}

	c.awaitRounds()
	c.finish()
}

// openAddresses returns the addresses on which processes of machines 0 and 1 listen.
func (c *cluster) openAddresses() (all []netip.AddrPort) {
	for _, m := range c.lab.Machines[:2] {
		for _, port := range listeningPorts(m) {
			all = append(all, netip.AddrPortFrom(m.Addresses[0], port))
		}
	}

	return all
}

// awaitPorts waits until ranks 0 to 2 listen for connections. Rank 0 listens on two ports, because
// it also serves the store. Ranks 1 and 2 listen on one each.
func (c *cluster) awaitPorts() {
	c.t.Helper()
	const portCount = 4
	deadline := time.Now().Add(hangTimeout)
	for len(c.openAddresses()) < portCount {
		if time.Now().After(deadline) {
			c.t.Fatalf("the ranks listen at %v, want %d addresses", c.openAddresses(), portCount)
		}

		<-time.After(10 * time.Millisecond)
	}
}

// listeningPorts lists the TCP ports on which processes of a machine listen. It reads them from the
// kernel's tables of connections, one for IPv4 and one for IPv6.
func listeningPorts(m *netlab.Machine) (ports []uint16) {
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", m.Thread, table))
		if err != nil {
			continue
		}

		for line := range strings.Lines(string(text)) {
			if port, isListening := parseListener(line); isListening {
				ports = append(ports, port)
			}
		}
	}

	return ports
}

// parseListener returns the port of a line such as "0: 0100007F:0016 00000000:0000 0A", which has
// the local address, the remote address and the state. isListening is false if the state is not 0A.
func parseListener(line string) (port uint16, isListening bool) {
	const localIndex, stateIndex = 1, 3
	const listening = "0A"
	fields := strings.Fields(line)
	if len(fields) <= stateIndex || fields[stateIndex] != listening {
		return 0, false
	}

	_, digits, _ := strings.Cut(fields[localIndex], ":")
	number, err := strconv.ParseUint(digits, 16, 16) // hexadecimal, 16 bits
	return uint16(number), err == nil
}

// attack connects to addresses until it is stopped. It sends invalid data on some connections and
// keeps the others open. It has no token.
type attack struct {
	enough chan struct{} // closed after attackConnectionCount connections
	stop   chan struct{} // closed to stop the attack
}

// attackConnectionCount exceeds the number of silent connections that the store and a rank keep
// open.
const attackConnectionCount = 600

// startAttack starts an attack from the last machine. The attack ends with the test. targets
// returns the addresses to attack at the moment.
func startAttack(c *cluster, targets func() []netip.AddrPort) *attack {
	a := &attack{enough: make(chan struct{}), stop: make(chan struct{})}
	attacker := c.lab.Machines[len(c.lab.Machines)-1]
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.run(attacker, targets)
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

// run connects from a machine to all targets about once in a millisecond, until it is stopped.
func (a *attack) run(from *netlab.Machine, targets func() []netip.AddrPort) {
	var kept []net.Conn // connections that stay open until the attack ends
	defer func() {
		for _, conn := range kept {
			_ = conn.Close()
		}
	}()
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for count := 0; ; { // number of connections so far
		select {
		case <-a.stop:
			return
		case <-pause.C:
		}

		for _, target := range targets() {
			conn, err := dialFrom(from, target)
			if err != nil {
				continue
			}

			count++
			if count == attackConnectionCount {
				close(a.enough)
			}

			text := attackTexts[count%len(attackTexts)]
			_ = conn.SetDeadline(time.Now().Add(attackTimeout))
			_, _ = io.WriteString(conn, text)
			// The target waits for the rest of a text that is shorter than a hello.
			shouldKeep := count%2 == 0 || len(text) < helloBytes
			if shouldKeep && len(kept) < attackConnectionCount {
				kept = append(kept, conn)
			} else {
				_ = conn.Close()
			}
		}
	}
}

// attackTimeout limits the time for opening a connection, and for sending on it.
const attackTimeout = 100 * time.Millisecond

// dialFrom connects from a machine to an address.
func dialFrom(from *netlab.Machine, target netip.AddrPort) (conn net.Conn, err error) {
	err = from.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", target.String(), attackTimeout)
		return err
	})
	return conn, err
}

// attackTexts contains the data that the attack sends. A hello is the first message on a connection
// between ranks. It begins with protocolName.
var attackTexts = []string{
	"",
	protocolName, // an incomplete hello
	"GET / HTTP/1.1\r\n\r\n",
	strings.Repeat("\xff", 4096),
	protocolName + strings.Repeat("x", 200),
	"\x00\x2d\xc8\x1b\x3c\x09", // VALIDATE of PyTorch's store with a wrong token
	randomText(1 << 16),
	// Messages that ranks send only after a hello.
	string(encodeFrame(kindFail, "")) + string(encodeFrame(kindPost, trackControl)),
	string(corruptFrame(4, 255, 255, 255, 255)), // its payload has almost 4 GiB
	// Complete hellos. No job has as many ranks as the last one claims.
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

// helloWithWrongToken returns the hello of a rank to another, the target. Its token and addresses
// are all zeros.
func helloWithWrongToken(rank, target uint32) string {
	const attempt = 1
	hello := append([]byte(protocolName), make([]byte, tokenHalf)...)
	for _, number := range []uint32{rank, target, attempt} {
		hello = binary.LittleEndian.AppendUint32(hello, number)
	}

	return string(hello) + strings.Repeat("\x00", 2*addressBytes)
}

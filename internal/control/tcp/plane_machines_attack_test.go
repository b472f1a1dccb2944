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

// An attacker without the group's token does not disturb a job. Network namespaces on this host
// simulate three machines: 0 and 1 run two ranks each, and 2 attacks.

// newAttackedCluster returns a cluster whose ranks have not been started.
func newAttackedCluster(t *testing.T) *cluster {
	t.Helper()
	c := newIdleCluster(t, netlab.Config{Machines: 3}, ranksPerMachine)
	c.idle = 1 // the attacker runs no ranks
	return c
}

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

// The attack begins while ranks 0 to 2 wait for rank 3. Once rank 3 has joined, ranks accept no
// connections, and only the store does.
func TestAttackOnRanksIsIgnored(t *testing.T) {
	t.Parallel()
	c := newAttackedCluster(t)
	c.lastWaits = true // rank 3 joins when it reads a line
	c.start(machineRank{Timeout: hangTimeout})
	lastRank := c.ranks[len(c.ranks)-1]
	c.awaitPorts()
	a := startAttack(c, c.openAddresses)
	a.awaitConnections(c.t)
	_, _ = io.WriteString(lastRank.input, "join\n") // awaitAll reports a rank that has ended
	c.awaitAll(eventNamed(eventJoined))
	open := c.openAddresses()
	isOnlyStore := len(open) == 1 && open[0].Port() == storePort
	if !isOnlyStore {
		c.t.Errorf("after all ranks have joined, %v are open, want only the store's port", open)
	}

	c.awaitRounds()
	c.finish()
}

// openAddresses lists the addresses on machines 0 and 1 that accept connections.
func (c *cluster) openAddresses() (all []netip.AddrPort) {
	const attackedCount = 2
	for _, m := range c.lab.Machines[:attackedCount] {
		for _, port := range listeningPorts(m) {
			all = append(all, netip.AddrPortFrom(m.Addresses[0], port))
		}
	}

	return all
}

// awaitPorts waits until the store and ranks 0 to 2 listen.
func (c *cluster) awaitPorts() {
	c.t.Helper()
	const listenerCount = 4
	deadline := time.Now().Add(hangTimeout)
	for len(c.openAddresses()) < listenerCount {
		if time.Now().After(deadline) {
			c.t.Fatalf("the ranks listen at %v, want %d addresses", c.openAddresses(), listenerCount)
		}

		<-time.After(10 * time.Millisecond)
	}
}

// listeningPorts lists a machine's listening TCP ports from the kernel's connection tables.
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

// parseListener parses a line such as "0: 0100007F:0016 00000000:0000 0A" with the local address,
// the remote address and the state.
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

// attack opens connections and sends invalid data on them.
type attack struct {
	kept            []net.Conn // open until the attack stops
	connectionCount int
	enough          chan struct{} // closed after attackConnectionCount connections
	stop            chan struct{} // closed to stop the attack
}

// attackConnectionCount exceeds all limits of unauthenticated connections.
const attackConnectionCount = 600

// startAttack attacks from the last machine until the end of the test.
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

func (a *attack) awaitConnections(t testing.TB) {
	t.Helper()
	select {
	case <-a.enough:
	case <-time.After(hangTimeout):
		t.Fatalf("the attack could not open %d connections", attackConnectionCount)
	}
}

// run connects to all targets about once per millisecond.
func (a *attack) run(from *netlab.Machine, targets func() []netip.AddrPort) {
	defer func() {
		for _, conn := range a.kept {
			_ = conn.Close()
		}
	}()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-a.stop:
			return
		case <-ticker.C:
		}

		for _, target := range targets() {
			conn, err := dialFrom(from, target)
			if err == nil {
				a.abuse(conn)
			}
		}
	}
}

// abuse sends invalid data on a new connection, and keeps the connection or closes it.
func (a *attack) abuse(conn net.Conn) {
	a.connectionCount++
	if a.connectionCount == attackConnectionCount {
		close(a.enough)
	}

	text := attackTexts[a.connectionCount%len(attackTexts)]
	_ = conn.SetDeadline(time.Now().Add(attackTimeout))
	_, _ = io.WriteString(conn, text)      // fails if the target closes the connection first
	isIncomplete := len(text) < helloBytes // the target waits for the rest
	isEven := a.connectionCount%2 == 0
	shouldKeep := isIncomplete || isEven
	if shouldKeep && len(a.kept) < attackConnectionCount {
		a.kept = append(a.kept, conn)
		return
	}

	_ = conn.Close()
}

const attackTimeout = 100 * time.Millisecond // for dialing, and for sending

func dialFrom(from *netlab.Machine, target netip.AddrPort) (net.Conn, error) {
	var conn net.Conn
	err := from.Do(func() error {
		var err error
		conn, err = net.DialTimeout("tcp", target.String(), attackTimeout)
		return err
	})
	return conn, err
}

// attackTexts are sent in place of a hello, the first message on a connection between ranks.
var attackTexts = []string{
	"",
	protocolName, // an incomplete hello
	"GET / HTTP/1.1\r\n\r\n",
	strings.Repeat("\xff", 4096),
	protocolName + strings.Repeat("x", 200),
	"\x00\x2d\xc8\x1b\x3c\x09", // VALIDATE of PyTorch's store with a wrong token
	randomText(1 << 16),
	// Messages that are only valid after a hello.
	string(encodeFrame(kindFail, "")) + string(encodeFrame(kindPost, trackControl)),
	string(corruptFrame(4, 255, 255, 255, 255)), // announces a payload of 4 GiB
	helloWithWrongToken(1, 0),
	helloWithWrongToken(3, 1),
	helloWithWrongToken(1<<31, 0), // no such rank
}

// randomText returns the same bytes in each run.
func randomText(length int) string {
	text := make([]byte, length)
	seed := [32]byte{43}
	_, _ = rand.NewChaCha8(seed).Read(text) // never fails
	return string(text)
}

// helloWithWrongToken returns a hello whose token and addresses are all zeros.
func helloWithWrongToken(rank, target uint32) string {
	const attempt = 1
	hello := encodedHello{
		Protocol: [len(protocolName)]byte([]byte(protocolName)),
		Rank:     rank,
		Target:   target,
		Attempt:  attempt,
	}
	b, _ := binary.Append(nil, binary.LittleEndian, hello) // cannot fail
	return string(b)
}

package netlab

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// testTimeout expires only if a test hangs.
const testTimeout = time.Minute

// listen listens on a machine until the end of the test.
func listen(t *testing.T, m *Machine) net.Listener {
	t.Helper()
	var l net.Listener
	err := m.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(m.Addresses[0].String(), "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = l.Close() })
	return l
}

// dial connects from a machine to an address until the end of the test.
func dial(t *testing.T, m *Machine, address string, limit time.Duration) (net.Conn, error) {
	t.Helper()
	var c net.Conn
	err := m.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", address, limit)
		return err
	})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}

	return c, err
}

func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return ok && netErr.Timeout()
}

// TCP delivers a text unchanged over a link that delays and drops packets.
func TestPacketsCrossLossyLink(t *testing.T) {
	for _, usesIPv6 := range []bool{false, true} {
		lab := New(t, Config{Machines: 2, IPv6: usesIPv6, Seed: 7}) // arbitrary
		lab.SetAll(Link{MinDelay: 100 * time.Microsecond, MaxDelay: 5 * time.Millisecond, Loss: 0.01})
		l := listen(t, lab.Machines[0])
		received := make(chan string, 1)
		go func() { received <- receive(l) }()
		text := strings.Repeat("0123456789abcdef", 1<<14) // 256 KiB, hundreds of packets
		send(t, lab.Machines[1], l.Addr().String(), text)
		if got := <-received; got != text {
			t.Errorf("received %d bytes that differ from the %d bytes sent: %.100q", len(got), len(text),
				got)
		}
	}
}

// receive accepts a connection and returns all of its data, with the text of any error at the end.
func receive(l net.Listener) string {
	c, err := l.Accept()
	if err != nil {
		return err.Error()
	}

	var data strings.Builder
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	_, err = io.Copy(&data, c)
	if err != nil {
		data.WriteString(err.Error())
	}

	return data.String()
}

// send opens a connection, writes a text and closes the connection.
func send(t *testing.T, m *Machine, address, text string) {
	t.Helper()
	c, err := dial(t, m, address, testTimeout)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}

	_ = c.Close()
}

// cutTimeout is the wait after which a link counts as cut. Connections take milliseconds otherwise.
const cutTimeout = 200 * time.Millisecond

func TestCutLinkDropsPackets(t *testing.T) {
	lab := New(t, Config{Machines: 2})
	l := listen(t, lab.Machines[0])
	lab.SetMachine(1, Link{Cut: true})
	_, err := dial(t, lab.Machines[1], l.Addr().String(), cutTimeout)
	if !isTimeout(err) {
		t.Errorf("Dial over a cut link = %v; want a timeout", err)
	}

	lab.SetMachine(1, Link{})
	if _, err := dial(t, lab.Machines[1], l.Addr().String(), testTimeout); err != nil {
		t.Errorf("Dial after the link was restored: %v", err)
	}
}

// Connections from a machine behind NAT come from its public address, and it accepts none.
func TestNATTranslatesAddresses(t *testing.T) {
	lab := New(t, Config{Machines: 2})
	public := netip.MustParseAddr("10.77.0.99")
	lab.TranslateAddress(1, public)
	l := listen(t, lab.Machines[0])
	if _, err := dial(t, lab.Machines[1], l.Addr().String(), testTimeout); err != nil {
		t.Fatal(err)
	}

	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if src := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); src != public {
		t.Errorf("source address of the connection = %v; want %v", src, public)
	}

	private := listen(t, lab.Machines[1])
	_, err = dial(t, lab.Machines[0], private.Addr().String(), cutTimeout)
	if !isTimeout(err) {
		t.Errorf("Dial to a machine behind NAT = %v; want a timeout", err)
	}
}

func TestMachinesHaveNamesAndClocks(t *testing.T) {
	const clockStep = 1000 * time.Second
	lab := New(t, Config{Machines: 2, ClockStep: clockStep})
	var clocks [2]time.Duration
	for i, m := range lab.Machines {
		name, clock := readNameAndClock(t, m)
		if name != m.Name {
			t.Errorf("host name of machine %d = %q; want %q", i, name, m.Name)
		}

		clocks[i] = clock
	}

	const tolerance = 100 * time.Second // The clocks are read one after the other.
	step := clocks[1] - clocks[0]
	if step < clockStep-tolerance || step > clockStep+tolerance {
		t.Errorf("the clocks differ by %v; want about %v", step, clockStep)
	}
}

// readNameAndClock returns a machine's host name and uptime.
func readNameAndClock(t *testing.T, m *Machine) (name string, clock time.Duration) {
	t.Helper()
	var output strings.Builder
	c := exec.CommandContext(t.Context(), "sh", "-c", "uname -n; cat /proc/uptime")
	c.Stdout = &output
	c.Stderr = os.Stderr
	if err := m.Start(c); err != nil {
		t.Fatal(err)
	}

	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}

	fields := strings.Fields(output.String()) // name, seconds since the start, idle seconds
	if len(fields) < 2 {
		t.Fatalf("machine %s printed %q, want its name and clock", m.Name, &output)
	}

	clock, err := time.ParseDuration(fields[1] + "s")
	if err != nil {
		t.Fatal(err)
	}

	return fields[0], clock
}

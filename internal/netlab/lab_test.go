package netlab

import (
	"errors"
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

// listen listens on a TCP port of a machine until the end of the test.
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

// dial connects from a machine to an address. It returns an error after the given time.
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

// TestPacketsCrossLossyLink sends a text over a link that delays all packets and drops some. TCP
// must deliver it unchanged. New skips the test if this process may not create machines.
func TestPacketsCrossLossyLink(t *testing.T) {
	for _, usesIPv6 := range []bool{false, true} {
		lab := New(t, Config{Machines: 2, IPv6: usesIPv6, Seed: 7}) // any seed
		lab.SetAll(Link{MinDelay: 100 * time.Microsecond, MaxDelay: 5 * time.Millisecond, Loss: 0.01})
		l := listen(t, lab.Machines[0])
		received := make(chan string, 1)
		text := strings.Repeat("0123456789abcdef", 1<<14) // 256 KiB, hundreds of packets
		go func() {
			c, err := l.Accept()
			if err != nil {
				received <- err.Error() // which differs from text
				return
			}

			var b strings.Builder
			_ = c.SetDeadline(time.Now().Add(testTimeout))
			_, err = c.(*net.TCPConn).WriteTo(&b)
			if err != nil {
				b.WriteString(err.Error())
			}

			received <- b.String()
		}()
		c, err := dial(t, lab.Machines[1], l.Addr().String(), testTimeout)
		if err != nil {
			t.Fatal(err)
		}

		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}

		_ = c.Close()
		// The connection was closed, so the receiver has all data or fails at its deadline.
		if got := <-received; got != text {
			t.Errorf("received %d bytes that differ from the %d bytes sent: %.100q", len(got), len(text),
				got)
		}
	}
}

// cutTimeout is the time after which tests take a link for cut. On other links, a connection takes
// milliseconds.
const cutTimeout = 200 * time.Millisecond

// TestCutLinkDropsPackets cuts the link of machine 1, and then restores it.
func TestCutLinkDropsPackets(t *testing.T) {
	lab := New(t, Config{Machines: 2})
	l := listen(t, lab.Machines[0])
	lab.Isolate(1, Link{Cut: true})
	_, err := dial(t, lab.Machines[1], l.Addr().String(), cutTimeout)
	if !isTimeout(err) {
		t.Errorf("Dial over a cut link = %v; want a timeout", err)
	}

	lab.Isolate(1, Link{}) // without delays or losses
	if _, err := dial(t, lab.Machines[1], l.Addr().String(), testTimeout); err != nil {
		t.Errorf("Dial after the link was restored: %v", err)
	}
}

// TestNATTranslatesAddresses puts machine 1 behind a network address translation (NAT). Its
// connections must appear to come from the public address, and no machine can connect to it.
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

// TestMachinesHaveNamesAndClocks starts a process on each of two machines, which prints the host
// name and the time since the start of the machine. The clocks of the machines differ by clockStep.
func TestMachinesHaveNamesAndClocks(t *testing.T) {
	const clockStep = 1000 * time.Second
	lab := New(t, Config{Machines: 2, ClockStep: clockStep})
	var output [2]strings.Builder
	for i, m := range lab.Machines {
		c := exec.CommandContext(t.Context(), "sh", "-c", "uname -n; cat /proc/uptime")
		c.Stdout, c.Stderr = &output[i], os.Stderr
		if err := m.Start(c); err != nil {
			t.Fatal(err)
		}

		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
	}

	var uptimes [2]time.Duration
	for i := range output {
		fields := strings.Fields(output[i].String()) // the name, the uptime and the idle time
		if len(fields) < 2 {
			t.Fatalf("machine %d printed %q, want its name and uptime", i, &output[i])
		}

		if fields[0] != lab.Machines[i].Name {
			t.Errorf("host name of machine %d = %q; want %q", i, fields[0], lab.Machines[i].Name)
		}

		var err error
		if uptimes[i], err = time.ParseDuration(fields[1] + "s"); err != nil {
			t.Fatal(err)
		}
	}

	const tolerance = 100 * time.Second // The processes do not read their clocks at the same time.
	step := uptimes[1] - uptimes[0]
	if step < clockStep-tolerance || step > clockStep+tolerance {
		t.Errorf("the clocks differ by %v; want about %v", step, clockStep)
	}
}

package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Lab is a network of simulated machines. Its methods are safe for concurrent use.
//
// With two machines of two network interfaces each, machine 0 has the addresses 10.77.0.1 and
// 10.78.0.1, and machine 1 has 10.77.0.2 and 10.78.0.2. Each machine is a network namespace of the
// kernel. A router in this process forwards the packets between machines. It can delay and drop the
// packets of a link, which leads from one machine to another.
type Lab struct {
	Machines []*Machine // read-only
	router   *router
	closed   chan struct{} // closed by close
}

// Config describes the network that New builds.
type Config struct {
	Machines   int    // number of machines, from 1 to 200
	Interfaces int    // number of network interfaces of each machine; 0 means 1
	IPv6       bool   // use IPv6 addresses instead of IPv4
	Seed       uint64 // determines the random delays and losses
	// ClockStep is how far the monotonic clock of machine i+1 is ahead of that of machine i.
	ClockStep time.Duration
}

// New builds a network and closes it at the end of the test. It skips the test if this process
// cannot build a network.
func New(t testing.TB, cfg Config) *Lab {
	t.Helper()
	if err := checkSupported(); err != nil {
		t.Skip(err)
	}

	l := &Lab{router: newRouter(cfg.Seed), closed: make(chan struct{})}
	l.router.tasks.Go(func() { l.router.watchStalls(l.closed) }) // for LongestStall
	t.Cleanup(l.close)
	hostsPath := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hostsPath, cfg.hostsFile(), 0o644); err != nil {
		t.Fatal(err)
	}

	for i := range cfg.Machines {
		m, err := newMachine(i, &cfg, hostsPath)
		if err != nil {
			t.Fatalf("machine %d of the lab: %v", i, err)
		}

		l.Machines = append(l.Machines, m) // From here on, l.close closes the machine.
		err = m.addInterfaces(l.router, &cfg)
		if err != nil {
			t.Fatalf("machine %d of the lab: %v", i, err)
		}
	}

	return l
}

// checkSupported returns an error unless this process can create network namespaces and TUN
// devices. A TUN device is a network interface whose packets a process reads and writes.
func checkSupported() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("network namespaces need root: %w", errors.ErrUnsupported)
	}

	if _, err := os.Stat(tunPath); err != nil {
		return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}

	if _, err := exec.LookPath("ip"); err != nil {
		return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}

	return nil
}

// close kills the processes on all machines and waits for the router's goroutines.
func (l *Lab) close() {
	close(l.closed)
	for _, m := range l.Machines {
		m.close()
	}

	l.router.tasks.Wait()
}

// LongestStall returns the longest time for which a busy host did not run this process. Packets may
// have been delayed for this time. After a long stall, tests should not judge how fast the
// processes on the machines reacted.
func (l *Lab) LongestStall() time.Duration { return time.Duration(l.router.longestStall.Load()) }

// DroppedPackets returns the number of packets that the kernel dropped because the router did not
// read them in time. Machines whose counters cannot be read count as 0.
func (l *Lab) DroppedPackets() (packets uint64) {
	for _, m := range l.Machines {
		table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", m.Thread))
		if err == nil {
			packets += droppedPackets(string(table))
		}
	}

	return packets
}

// droppedPackets returns the number of dropped packets of a machine's interfaces, which are called
// net0, net1 and so on. table has the format of /proc/net/dev: a line with the name of an
// interface, a colon and columns with counters.
func droppedPackets(table string) (packets uint64) {
	const txDropped = 11 // index of the column of packets that were dropped instead of transmitted
	for line := range strings.Lines(table) {
		name, counters, _ := strings.Cut(line, ":")
		isInterface := strings.HasPrefix(strings.TrimSpace(name), "net")
		columns := strings.Fields(counters)
		if !isInterface || len(columns) <= txDropped {
			continue
		}

		count, err := strconv.ParseUint(columns[txDropped], 10, 64)
		if err == nil {
			packets += count
		}
	}

	return packets
}

// SetAll sets the properties of the links between all machines, such as delays and losses.
func (l *Lab) SetAll(link Link) {
	for src := range l.Machines {
		for dst := range l.Machines {
			l.router.setLink(src, dst, link)
		}
	}
}

// Set sets the properties of the links between machines a and b, in both directions. a and b are
// indexes in Machines.
func (l *Lab) Set(a, b int, link Link) {
	l.router.setLink(a, b, link)
	l.router.setLink(b, a, link)
}

// Isolate sets the properties of the links between a machine and all others, in both directions.
func (l *Lab) Isolate(machine int, link Link) {
	for other := range l.Machines {
		if other != machine {
			l.Set(machine, other, link)
		}
	}
}

// CutInterface makes the router drop all packets to and from an interface of a machine. number is
// the number of the interface, from 0.
func (l *Lab) CutInterface(machine, number int) {
	address := l.Machines[machine].Addresses[number]
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	l.router.ports[address].isCut = true
}

// TranslateAddress puts a machine behind a network address translation (NAT). TCP connections from
// its first interface appear to come from the public IPv4 address.
func (l *Lab) TranslateAddress(machine int, public netip.Addr) {
	private := l.Machines[machine].Addresses[0]
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	l.router.translations[machine] = addressPair{private: private, public: public}
	l.router.ports[public] = l.router.ports[private]
}

// hostsFile returns the text of /etc/hosts on all machines. It maps the name of each machine to the
// address of its first interface.
func (cfg *Config) hostsFile() []byte {
	text := []byte("127.0.0.1 localhost\n")
	const firstInterface = 0
	for i := range cfg.Machines {
		text = fmt.Appendf(text, "%v %s\n", cfg.address(i, firstInterface), machineName(i))
	}

	return text
}

// address returns the address of an interface. number is the number of the interface, from 0.
// Interfaces with the same number are in one subnet, for example 10.77.0.0/24.
func (cfg *Config) address(machine, number int) netip.Addr {
	text := fmt.Sprintf("10.%d.0.%d", 77+number, machine+1)
	if cfg.IPv6 {
		text = fmt.Sprintf("fd77:%d::%x", number, machine+1)
	}

	return netip.MustParseAddr(text)
}

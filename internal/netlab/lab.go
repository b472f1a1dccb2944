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
// Each machine is a network namespace. A router in this process forwards packets between the
// machines, and can delay or drop them.
type Lab struct {
	Machines []*Machine // read-only
	router   *router
}

// Config describes the network that New builds.
type Config struct {
	Machines   int // number, from 1 to 200
	Interfaces int // number on each machine; 0 means 1
	IPv6       bool
	Seed       uint64 // for random delays and losses
	// ClockStep is how far each machine's monotonic clock is ahead of the previous one's.
	ClockStep time.Duration
}

// New builds a network and closes it at the end of the test. It skips the test without root, TUN
// devices or the ip command.
func New(t testing.TB, cfg Config) *Lab {
	t.Helper()
	if err := checkSupported(); err != nil {
		t.Skip(err)
	}

	l := &Lab{router: newRouter(cfg.Seed)}
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

		l.Machines = append(l.Machines, m) // l.close closes m, even if addInterfaces fails.
		if err := m.addInterfaces(l.router, &cfg); err != nil {
			t.Fatalf("machine %d of the lab: %v", i, err)
		}
	}

	return l
}

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

// close kills the processes on all machines and waits for the router.
func (l *Lab) close() {
	for _, m := range l.Machines {
		m.close()
	}

	l.router.close()
}

// LongestStall returns the longest delay of the router's timers. A busy host causes such stalls and
// also delays packets, so tests should not judge reaction times after a long stall.
func (l *Lab) LongestStall() time.Duration {
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	return l.router.longestStall
}

// DroppedPackets returns the number of packets that the kernel dropped because the router was too
// slow. It skips machines whose counters it cannot read.
func (l *Lab) DroppedPackets() (packets uint64) {
	for _, m := range l.Machines {
		table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", m.Thread))
		if err == nil {
			packets += sumDrops(string(table))
		}
	}

	return packets
}

// sumDrops adds the drop counters of interfaces net0, net1, ... in the text of /proc/net/dev.
func sumDrops(table string) (packets uint64) {
	const txDropped = 11 // index in columns of packets dropped on transmission
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

// SetAll configures the links between all machines.
func (l *Lab) SetAll(link Link) {
	for src := range l.Machines {
		for dst := range l.Machines {
			l.router.setLink(src, dst, link)
		}
	}
}

// Set configures both directions of the link between two machines.
func (l *Lab) Set(a, b int, link Link) {
	l.router.setLink(a, b, link)
	l.router.setLink(b, a, link)
}

// SetMachine configures the links between a machine and all others.
func (l *Lab) SetMachine(machine int, link Link) {
	for other := range l.Machines {
		if other != machine {
			l.Set(machine, other, link)
		}
	}
}

// CutInterface makes the router drop all packets of an interface.
func (l *Lab) CutInterface(machine, iface int) {
	address := l.Machines[machine].Addresses[iface]
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	l.router.ports[address].isCut = true
}

// TranslateAddress puts a machine behind network address translation (NAT): TCP connections from
// its first interface appear to come from the public IPv4 address.
func (l *Lab) TranslateAddress(machine int, public netip.Addr) {
	private := l.Machines[machine].Addresses[0]
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	l.router.translations[machine] = addressPair{private: private, public: public}
}

// hostsFile returns an /etc/hosts with the name and first address of each machine.
func (cfg *Config) hostsFile() []byte {
	text := []byte("127.0.0.1 localhost\n")
	for i := range cfg.Machines {
		firstAddress := cfg.address(i, 0)
		text = fmt.Appendf(text, "%v %s\n", firstAddress, machineName(i))
	}

	return text
}

// address returns, for example, 10.78.0.3 for interface 1 of machine 2. Interfaces with the same
// index share a subnet.
func (cfg *Config) address(machine, iface int) netip.Addr {
	text := fmt.Sprintf("10.%d.0.%d", 77+iface, machine+1)
	if cfg.IPv6 {
		text = fmt.Sprintf("fd77:%d::%x", iface, machine+1)
	}

	return netip.MustParseAddr(text)
}

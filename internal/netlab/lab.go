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

// Config describes the network that New builds.
type Config struct {
	Machines   int    // number of machines, from 1 to 200
	Interfaces int    // number of interfaces of each machine; 0 means 1
	IPv6       bool   // use IPv6 addresses instead of IPv4
	Seed       uint64 // of the generator of random delays and losses
	// ClockStep is how far the monotonic clock of machine i+1 is ahead of that of machine i.
	ClockStep time.Duration
}

// Lab is a network of simulated machines, each a network namespace, which a router in this process
// connects. Its methods are safe for concurrent use.
type Lab struct {
	Machines []*Machine // read-only
	router   *router
	closed   chan struct{} // closed by close
}

// New builds a network and closes it at the end of the test. It skips the test if this process
// cannot build a network.
func New(t testing.TB, cfg Config) *Lab {
	t.Helper()
	if err := checkSupported(); err != nil {
		t.Skip(err)
	}
	l := &Lab{router: newRouter(cfg.Seed), closed: make(chan struct{})}
	l.router.tasks.Go(func() { l.router.watchStalls(l.closed) })
	t.Cleanup(l.close)
	hostsPath := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hostsPath, cfg.hostsFile(), 0o644); err != nil {
		t.Fatal(err)
	}
	for i := range cfg.Machines {
		m, err := newMachine(i, &cfg, hostsPath)
		if err == nil {
			l.Machines = append(l.Machines, m)
			err = m.addInterfaces(l.router, &cfg)
		}
		if err != nil {
			t.Fatalf("machine %d of the lab: %v", i, err)
		}
	}
	return l
}

// checkSupported returns an error unless this process can create network namespaces and TUN
// devices.
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

func (l *Lab) close() {
	close(l.closed)
	for _, m := range l.Machines {
		m.close()
	}
	l.router.tasks.Wait()
}

// LongestStall returns the longest time for which a busy host may have delayed packets. After a
// long stall, tests should not judge how fast ranks reacted.
func (l *Lab) LongestStall() time.Duration { return time.Duration(l.router.longestStall.Load()) }

// DroppedPackets returns the number of packets that the kernel dropped because this process did
// not read them in time. Machines whose counters cannot be read count as 0.
func (l *Lab) DroppedPackets() (packets uint64) {
	for _, m := range l.Machines {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", m.Thread))
		for line := range strings.Lines(string(text)) {
			name, counters, _ := strings.Cut(line, ":")
			const txDropped = 11 // index of the column
			fields := strings.Fields(counters)
			if !strings.HasPrefix(strings.TrimSpace(name), "net") || len(fields) <= txDropped {
				continue
			}
			n, _ := strconv.ParseUint(fields[txDropped], 10, 64)
			packets += n
		}
	}
	return packets
}

// SetAll sets the delays, losses and other properties of the links between all machines.
func (l *Lab) SetAll(link Link) {
	for src := range l.Machines {
		for dst := range l.Machines {
			l.router.setLink(src, dst, link)
		}
	}
}

// Set sets the properties of the links between machines a and b, in both directions. Machines are
// identified by their index in Machines.
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

// CutInterface makes the router drop all packets to and from the interface of a machine with the
// given number, counted from 0.
func (l *Lab) CutInterface(machine, number int) {
	address := l.Machines[machine].Addresses[number]
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	l.router.ports[address].isCut = true
}

// TranslateAddress puts a machine behind NAT. TCP connections from its first interface appear to
// come from the public IPv4 address.
func (l *Lab) TranslateAddress(machine int, public netip.Addr) {
	private := l.Machines[machine].Addresses[0]
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	l.router.translations[machine] = addressPair{private, public}
	l.router.ports[public] = l.router.ports[private]
}

// hostsFile returns the /etc/hosts of all machines, with the address of each one's first
// interface.
func (cfg *Config) hostsFile() []byte {
	text := []byte("127.0.0.1 localhost\n")
	for i := range cfg.Machines {
		text = fmt.Appendf(text, "%v %s\n", cfg.address(i, 0), machineName(i))
	}
	return text
}

// address returns the address of an interface. Interfaces with the same number are in one subnet.
func (cfg *Config) address(machine, number int) netip.Addr {
	text := "10." + strconv.Itoa(77+number) + ".0." + strconv.Itoa(machine+1)
	if cfg.IPv6 {
		text = "fd77:" + strconv.Itoa(number) + "::" + strconv.FormatInt(int64(machine+1), 16)
	}
	return netip.MustParseAddr(text)
}

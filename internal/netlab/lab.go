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

// Config configures New.
type Config struct {
	Machines   int    // from 1 to 200
	Interfaces int    // of each machine; 0 means 1
	IPv6       bool   // addresses instead of IPv4
	Seed       uint64 // for random delays and losses
	// ClockStep is how far the monotonic clock of machine i+1 is ahead of that of machine i.
	ClockStep time.Duration
}

// Lab is a network of simulated machines. Its methods are safe for concurrent use.
type Lab struct {
	Machines []*Machine // must not be changed
	router   *router
	closed   chan struct{}
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

// DroppedPackets returns the number of packets that this process did not read in time.
func (l *Lab) DroppedPackets() (packets uint64) {
	for _, m := range l.Machines {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", m.Thread))
		for line := range strings.Lines(string(text)) {
			name, counters, _ := strings.Cut(line, ":")
			const txDropped = 11
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

// SetAll sets the links between all machines.
func (l *Lab) SetAll(link Link) {
	for src := range l.Machines {
		for dst := range l.Machines {
			l.router.setLink(src, dst, link)
		}
	}
}

// Set sets the links between two machines in both directions.
func (l *Lab) Set(a, b int, link Link) {
	l.router.setLink(a, b, link)
	l.router.setLink(b, a, link)
}

// Isolate sets the links between a machine and all others in both directions.
func (l *Lab) Isolate(machine int, link Link) {
	for other := range l.Machines {
		if other != machine {
			l.Set(machine, other, link)
		}
	}
}

// CutInterface makes the router drop all packets to and from an interface of a machine.
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

func (cfg *Config) hostsFile() []byte {
	text := []byte("127.0.0.1 localhost\n")
	for i := range cfg.Machines {
		text = fmt.Appendf(text, "%v %s\n", cfg.address(i, 0), machineName(i))
	}
	return text
}

// Interfaces with the same number are in the same subnet.
func (cfg *Config) address(machine, number int) netip.Addr {
	text := "10." + strconv.Itoa(77+number) + ".0." + strconv.Itoa(machine+1)
	if cfg.IPv6 {
		text = "fd77:" + strconv.Itoa(number) + "::" + strconv.FormatInt(int64(machine+1), 16)
	}
	return netip.MustParseAddr(text)
}

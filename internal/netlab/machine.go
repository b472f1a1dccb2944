package netlab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// Machine is a simulated machine: a thread with separate network, host name and mounts, which child
// processes inherit. Its methods are safe for concurrent use.
type Machine struct {
	Name      string       // host name
	Addresses []netip.Addr // of the interfaces
	// Thread is the ID of the machine's thread. nsenter --target and /proc accept it as a process ID.
	Thread int

	index   int         // in Lab.Machines
	calls   chan func() // functions to call on the thread
	devices []*os.File  // TUN devices of the interfaces
}

// newMachine returns a machine without network interfaces.
func newMachine(index int, cfg *Config, hostsPath string) (*Machine, error) {
	m := &Machine{Name: machineName(index), index: index, calls: make(chan func())}
	entered := make(chan error)
	clockOffset := time.Duration(index) * cfg.ClockStep
	go m.runThread(entered, clockOffset, hostsPath)
	return m, <-entered
}

// machineName returns a name such as node-a for machine 0, or node-a1 for machine 26.
func machineName(index int) string {
	name := "node-" + string(rune('a'+index%26))
	if index >= 26 {
		name += strconv.Itoa(index / 26)
	}

	return name
}

// runThread enters the machine's namespaces, sends the error to entered, and calls the functions
// from m.calls until the channel is closed. The locked thread then exits with this goroutine, and
// Pdeathsig kills the processes of Start.
func (m *Machine) runThread(entered chan<- error, clockOffset time.Duration, hostsPath string) {
	runtime.LockOSThread()
	m.Thread = syscall.Gettid()
	err := m.enterNamespaces(clockOffset, hostsPath)
	entered <- err
	if err != nil {
		return
	}

	for call := range m.calls {
		call()
	}
}

func (m *Machine) enterNamespaces(clockOffset time.Duration, hostsPath string) error {
	const namespaces = syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNS
	if err := syscall.Unshare(namespaces); err != nil {
		return fmt.Errorf("creating namespaces: %w", err)
	}

	// The mounts below must not propagate to the rest of the process.
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}

	if err := syscall.Mount(hostsPath, "/etc/hosts", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting /etc/hosts: %w", err)
	}

	if err := syscall.Sethostname([]byte(m.Name)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}

	if clockOffset == 0 {
		return nil
	}

	return setChildClocks(clockOffset)
}

// cloneNewTime is CLONE_NEWTIME of linux/sched.h, which package syscall lacks.
const cloneNewTime = 0x80

// setChildClocks advances the clocks of new child processes by offset, truncated to seconds. The
// calling thread stays in its time namespace.
func setChildClocks(offset time.Duration) error {
	if err := syscall.Unshare(cloneNewTime); err != nil {
		return fmt.Errorf("creating a time namespace: %w", err)
	}

	path := fmt.Sprintf("/proc/%d/timens_offsets", syscall.Gettid())
	seconds := int64(offset.Seconds())
	// Each line has a clock, seconds and nanoseconds.
	offsets := fmt.Appendf(nil, "monotonic %d 0\nboottime %d 0\n", seconds, seconds)
	return os.WriteFile(path, offsets, 0o644)
}

// Do calls f on the machine's thread. Processes that f starts run on the machine.
func (m *Machine) Do(f func() error) error {
	result := make(chan error)
	m.calls <- func() { result <- f() }
	return <-result
}

// Start starts a command, which dies with the machine.
func (m *Machine) Start(c *exec.Cmd) error {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}

	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return m.Do(c.Start)
}

// Run runs a command and waits for it. An error contains the command's output.
func (m *Machine) Run(name string, args ...string) error {
	return m.Do(func() error {
		output, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %q: %w: %s", name, args, err, output)
		}

		return nil
	})
}

func (m *Machine) addInterfaces(r *router, cfg *Config) error {
	if err := m.Run("ip", "link", "set", "lo", "up"); err != nil {
		return err
	}

	for iface := range max(1, cfg.Interfaces) {
		if err := m.addInterface(r, cfg, iface); err != nil {
			return err
		}
	}

	return nil
}

func (m *Machine) addInterface(r *router, cfg *Config, iface int) error {
	name := "net" + strconv.Itoa(iface)
	address := cfg.address(m.index, iface)
	var device *os.File
	err := m.Do(func() (err error) {
		device, err = openTUN(name)
		return err
	})
	if err != nil {
		return err
	}

	m.devices = append(m.devices, device)
	m.Addresses = append(m.Addresses, address)
	prefixLength := "/24"
	if cfg.IPv6 {
		prefixLength = "/64"
	}

	arguments := []string{"addr", "add", address.String() + prefixLength, "dev", name}
	if cfg.IPv6 {
		// Duplicate address detection would delay the use of the address.
		arguments = append(arguments, "nodad")
	}

	if err := m.Run("ip", arguments...); err != nil {
		return err
	}

	const mtu = "1400" // less than maxPacket of forwardAll
	if err := m.Run("ip", "link", "set", name, "up", "mtu", mtu); err != nil {
		return err
	}

	r.attachPort(&port{machine: m.index, device: device}, address)
	return nil
}

// Constants of linux/if_tun.h.
const (
	tunSetInterface = 0x400454ca // TUNSETIFF
	flagTUN         = 0x0001     // IFF_TUN: the device transfers IP packets
	flagNoHeader    = 0x1000     // IFF_NO_PI: no other header precedes the IP header
)

// tunPath is the file that creates a TUN device when it is opened.
const tunPath = "/dev/net/tun"

// openTUN creates a network interface in the calling thread's network namespace. Reading the file
// returns packets that processes send over the interface. Writing to it delivers packets to them.
func openTUN(name string) (*os.File, error) {
	fd, err := syscall.Open(tunPath, syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", tunPath, err)
	}

	var request [40]byte // struct ifreq of C: a name that ends with a zero byte, and flags
	copy(request[:syscall.IFNAMSIZ-1], name)
	binary.NativeEndian.PutUint16(request[syscall.IFNAMSIZ:], flagTUN|flagNoHeader)
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), tunSetInterface,
		uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("creating the TUN device %s: %w", name, errno)
	}

	return os.NewFile(uintptr(fd), name), nil
}

// close ends the machine's thread, which kills its processes, and removes its interfaces.
func (m *Machine) close() {
	close(m.calls)
	for _, d := range m.devices {
		_ = d.Close()
	}
}

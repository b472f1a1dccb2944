package netlab

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// Machine is a simulated machine. Its methods are safe for concurrent use.
//
// It consists of a thread in new namespaces of the kernel. The thread thus has a different network,
// host name and /etc/hosts than the rest of this process. Processes that the thread starts also
// have them, and a different clock. To run code on the machine, Do calls a function on the thread.
type Machine struct {
	Name      string       // host name
	Addresses []netip.Addr // address of each interface, by its number
	// Thread is the ID of the machine's thread, for example for nsenter --target.
	Thread int

	index   int         // in Lab.Machines
	calls   chan func() // functions to call on the thread
	devices []*os.File  // file of each interface, from which the router reads its packets
}

// newMachine returns a machine without network interfaces. hostsPath is the file to use as
// /etc/hosts.
func newMachine(index int, cfg *Config, hostsPath string) (*Machine, error) {
	m := &Machine{Name: machineName(index), index: index, calls: make(chan func())}
	ready := make(chan error)
	clockOffset := time.Duration(index) * cfg.ClockStep
	go m.runThread(ready, clockOffset, hostsPath)
	err := <-ready // Thread has been set, too.
	return m, err
}

// machineName returns a name such as node-a for machine 0, or node-a1 for machine 26.
func machineName(index int) string {
	name := "node-" + string(rune('a'+index%26))
	if index >= 26 {
		name += strconv.Itoa(index / 26)
	}

	return name
}

// runThread turns its thread into the machine's thread. It sends the result of enterNamespaces to
// ready, and then calls the functions in m.calls until m.calls is closed.
//
// It does not unlock the thread, so the thread exits when runThread returns. The kernel then kills
// the processes that Start has started.
func (m *Machine) runThread(ready chan<- error, clockOffset time.Duration, hostsPath string) {
	runtime.LockOSThread()
	m.Thread = syscall.Gettid()
	err := m.enterNamespaces(clockOffset, hostsPath)
	ready <- err
	if err != nil {
		return
	}

	for call := range m.calls {
		call()
	}
}

// enterNamespaces moves this thread to new namespaces with the machine's name, hosts and clock.
func (m *Machine) enterNamespaces(clockOffset time.Duration, hostsPath string) error {
	const namespaces = syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNS
	if err := syscall.Unshare(namespaces); err != nil {
		return fmt.Errorf("creating namespaces: %w", err)
	}

	// Mounts of this thread must not appear in the rest of the process.
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

// setChildClocks moves the clocks of this thread's child processes ahead by whole seconds.
func setChildClocks(offset time.Duration) error {
	if err := syscall.Unshare(cloneNewTime); err != nil {
		return fmt.Errorf("creating a time namespace: %w", err)
	}

	// Each line of the file has the name of a clock, and its offset in seconds and nanoseconds.
	path := fmt.Sprintf("/proc/%d/timens_offsets", syscall.Gettid())
	seconds := int64(offset.Seconds())
	offsets := fmt.Appendf(nil, "monotonic %d 0\nboottime %d 0\n", seconds, seconds)
	const unusedMode = 0 // the file exists
	return os.WriteFile(path, offsets, unusedMode)
}

// Do calls f on the machine's thread. Processes that f starts run on the machine.
func (m *Machine) Do(f func() error) error {
	result := make(chan error)
	m.calls <- func() { result <- f() }
	return <-result
}

// Start starts a command, which is killed when the lab is closed.
func (m *Machine) Start(c *exec.Cmd) error {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}

	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return m.Do(c.Start)
}

// Run runs a command. Its error contains the command's output.
func (m *Machine) Run(name string, args ...string) error {
	return m.Do(func() error {
		output, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %q: %w: %s", name, args, err, output)
		}

		return nil
	})
}

// addInterfaces enables the loopback interface, and adds the interfaces that cfg requires.
func (m *Machine) addInterfaces(r *router, cfg *Config) error {
	if err := m.Run("ip", "link", "set", "lo", "up"); err != nil {
		return err
	}

	for number := range max(1, cfg.Interfaces) {
		if err := m.addInterface(r, cfg, number); err != nil {
			return err
		}
	}

	return nil
}

// addInterface adds an interface and connects it to the router. number counts from 0.
func (m *Machine) addInterface(r *router, cfg *Config, number int) error {
	name := "net" + strconv.Itoa(number)
	address := cfg.address(m.index, number)
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
		// Without nodad, the kernel would look for other machines with this address first.
		arguments = append(arguments, "nodad")
	}

	if err := m.Run("ip", arguments...); err != nil {
		return err
	}

	const maxPacketSize = "1400" // in bytes; less than maxPacket, the size of the router's buffers
	if err := m.Run("ip", "link", "set", name, "up", "mtu", maxPacketSize); err != nil {
		return err
	}

	r.attachPort(&port{machine: m.index, device: device}, []netip.Addr{address})
	return nil
}

// close ends the machine's thread, which kills its processes, and removes its interfaces.
func (m *Machine) close() {
	close(m.calls)
	for _, d := range m.devices {
		_ = d.Close()
	}
}

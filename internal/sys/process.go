package sys

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Pidfd opens a descriptor that becomes readable when a process exits, see pidfd_open(2). The
// descriptor never refers to a later process with the same ID. The caller must close it.
func Pidfd(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching process %d: %w", pid, err)
	}

	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// AwaitEnd waits until the process of a pidfd has exited. It returns an error if pidfd is closed or
// the deadline set by pidfd.SetReadDeadline passes.
func AwaitEnd(pidfd *os.File) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("watching a process: %w", err)
	}

	// Read waits in the runtime's poller until hasInput returns true, and occupies no thread.
	if err := raw.Read(hasInput); err != nil {
		return fmt.Errorf("watching a process: %w", err)
	}

	return nil
}

// HasEnded reports whether the process of a pidfd has exited. It returns false if pidfd is closed.
func HasEnded(pidfd *os.File) bool {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return false
	}

	hasEnded := false
	err = raw.Control(func(fd uintptr) { hasEnded = hasInput(fd) })
	return err == nil && hasEnded
}

// hasInput reports whether a read from a descriptor would not block.
func hasInput(fd uintptr) bool {
	const noWait = 0
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		readableCount, err := unix.Poll(fds, noWait)
		isInterrupted := err == unix.EINTR
		if !isInterrupted {
			return err == nil && readableCount > 0
		}
	}
}

// IsStopped reports whether a debugger or a signal such as SIGSTOP has stopped a process. It
// returns false if it cannot read the state.
func IsStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}

	// The format is "PID (NAME) STATE ...". NAME may contain parentheses.
	nameEnd := bytes.LastIndexByte(stat, ')')
	afterName := stat[nameEnd+1:]
	isStoppedBySignal := bytes.HasPrefix(afterName, []byte(" T"))
	isStoppedByDebugger := bytes.HasPrefix(afterName, []byte(" t"))
	return isStoppedBySignal || isStoppedByDebugger
}

// Memory returns the size of the machine's memory and swap space in bytes.
func Memory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("reading the size of memory: %w", err)
	}

	units := int64(info.Totalram + info.Totalswap)
	unitBytes := int64(info.Unit)
	return units * unitBytes, nil
}

// BootID returns a random ID that the kernel chooses at boot. All containers on a machine see the
// same ID.
func BootID() (string, error) { return readBootID("/proc/sys/kernel/random/boot_id") }

// readBootID reads the ID from a file, which must not be empty.
func readBootID(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the machine's boot ID: %w", err)
	}

	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", fmt.Errorf("reading the machine's boot ID: %s is empty", path)
	}

	return id, nil
}

// Namespace returns the ID of this process's namespace of a kind, see namespaces(7). For the kind
// "net", it returns an ID such as "net:[4026531840]".
func Namespace(kind string) (string, error) {
	id, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return "", fmt.Errorf("reading the %s namespace: %w", kind, err)
	}

	return id, nil
}

// IsReadable reports whether a load from an address of this process would succeed. It returns true
// if the system does not permit the check.
func IsReadable(address uintptr) bool {
	var buffer [1]byte
	destination := []unix.Iovec{{Base: &buffer[0], Len: 1}}
	source := []unix.RemoteIovec{{Base: address, Len: 1}}
	// For an invalid address, this system call returns EFAULT instead of raising a signal.
	_, err := unix.ProcessVMReadv(unix.Getpid(), destination, source, 0)
	return !errors.Is(err, unix.EFAULT)
}

// Monotonic returns the machine's monotonic clock in nanoseconds, or 0 after an error.
func Monotonic() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}

	return uint64(now.Nano())
}

package sys

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Pidfd opens a descriptor that becomes readable when the process exits. It never refers to another
// process with the same ID.
func Pidfd(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching process %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// AwaitEnd blocks until the process of a Pidfd has exited. It returns an error if pidfd is closed
// or its read deadline passes.
//
// AwaitEnd waits in the Go runtime's poller. While a thread is blocked in a system call, the
// runtime's monitor wakes up thousands of times a second on processors that the ranks need.
func AwaitEnd(pidfd *os.File) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("watching a process: %w", err)
	}
	if err := raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		readable, err := unix.Poll(fds, 0)
		for err == unix.EINTR {
			readable, err = unix.Poll(fds, 0)
		}
		return err == nil && readable > 0
	}); err != nil {
		return fmt.Errorf("watching a process: %w", err)
	}
	return nil
}

// Memory returns the size of the machine's memory and swap space in bytes.
func Memory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("reading the size of memory: %w", err)
	}
	return int64(info.Totalram+info.Totalswap) * int64(info.Unit), nil
}

// BootID returns an identifier that the kernel generates when the machine boots. Processes with the
// same ID run on the same machine, even if their containers have different host names.
func BootID() (string, error) { return readID("/proc/sys/kernel/random/boot_id") }

func readID(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the machine's boot ID: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("reading the machine's boot ID: %s is empty", path)
	}
	return id, nil
}

// Namespace returns an identifier of this process's namespace of one kind. Processes in different
// "net" namespaces cannot connect over abstract sockets. Pidfd finds only processes in the caller's
// "pid" namespace or in one that it contains.
func Namespace(kind string) (string, error) {
	id, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return "", fmt.Errorf("reading the %s namespace: %w", kind, err)
	}
	return id, nil
}

// Monotonic returns the time of the machine's monotonic clock in nanoseconds. Processes on the same
// machine can compare these times.
func Monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

package sys

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Pidfd opens a descriptor of a process (see pidfd_open(2)), which becomes readable when the
// process exits. If the process ID is reused later, the descriptor does not refer to the new
// process.
func Pidfd(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching process %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// AwaitEnd blocks until the process of a Pidfd has exited, or returns an error if pidfd is closed
// or its read deadline passes.
//
// AwaitEnd uses the runtime's poller instead of a blocking system call, because the Go runtime's
// monitor uses a processor while a thread is blocked in a system call.
func AwaitEnd(pidfd *os.File) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("watching a process: %w", err)
	}
	if err := raw.Read(isReadable); err != nil {
		return fmt.Errorf("watching a process: %w", err)
	}
	return nil
}

// HasEnded reports whether the process of a Pidfd has exited. It returns false if pidfd is closed.
func HasEnded(pidfd *os.File) bool {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return false
	}
	hasEnded := false
	err = raw.Control(func(fd uintptr) { hasEnded = isReadable(fd) })
	return err == nil && hasEnded
}

// isReadable reports whether a descriptor is readable now.
func isReadable(fd uintptr) bool {
	const timeout = 0
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	readableCount, err := unix.Poll(fds, timeout)
	for err == unix.EINTR {
		readableCount, err = unix.Poll(fds, timeout)
	}
	return err == nil && readableCount > 0
}

// IsStopped reports whether a signal such as SIGSTOP or a debugger has stopped a process. It
// returns false if the state is unknown.
func IsStopped(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The state follows the program's name in parentheses, which may itself contain parentheses.
	// T means stopped by a signal, and t by a debugger.
	state := b[bytes.LastIndexByte(b, ')')+1:]
	return bytes.HasPrefix(state, []byte(" T")) || bytes.HasPrefix(state, []byte(" t"))
}

// Memory returns the size of the machine's memory and swap space in bytes.
func Memory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("reading the size of memory: %w", err)
	}
	return int64(info.Totalram+info.Totalswap) * int64(info.Unit), nil
}

// BootID returns a random ID that the kernel chooses when the machine boots. It is the same in all
// containers on the machine.
func BootID() (string, error) { return readID("/proc/sys/kernel/random/boot_id") }

// readID returns the ID in a file, without white space around it.
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

// Namespace returns an identifier of the namespace that this process is in, such as
// "net:[4026531840]" for the kind "net".
func Namespace(kind string) (string, error) {
	id, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return "", fmt.Errorf("reading the %s namespace: %w", kind, err)
	}
	return id, nil
}

// Monotonic returns the machine's monotonic clock in nanoseconds, or 0 after an error.
func Monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

package sys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TakeStdout returns standard output, and redirects other output of this process and its children
// to standard error. If the reader has closed its end, a write does not raise SIGPIPE.
func TakeStdout() (*os.File, error) {
	stdout, err := unix.FcntlInt(uintptr(unix.Stdout), unix.F_DUPFD_CLOEXEC, unix.Stderr+1)
	if err != nil {
		return nil, fmt.Errorf("duplicating standard output: %w", err)
	}

	if err := unix.Dup3(unix.Stderr, unix.Stdout, 0); err != nil {
		_ = unix.Close(stdout)
		return nil, fmt.Errorf("redirecting standard output to standard error: %w", err)
	}

	return os.NewFile(uintptr(stdout), os.Stdout.Name()), nil
}

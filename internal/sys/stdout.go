package sys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TakeStdout gives standard output to its caller alone: what anything else in this process, or a
// child that inherits it, writes there from now on goes to standard error. A second call gives
// standard error, therefore. A writer to the file gets an error when nobody reads any more, but no
// SIGPIPE, which Go sends for descriptors 1 and 2 only.
func TakeStdout() (*os.File, error) {
	taken, err := unix.FcntlInt(uintptr(unix.Stdout), unix.F_DUPFD_CLOEXEC, unix.Stderr+1)
	if err != nil {
		return nil, fmt.Errorf("taking standard output: %w", err)
	}
	if err := unix.Dup3(unix.Stderr, unix.Stdout, 0); err != nil {
		_ = unix.Close(taken)
		return nil, fmt.Errorf("sending standard output to standard error: %w", err)
	}
	return os.NewFile(uintptr(taken), os.Stdout.Name()), nil
}

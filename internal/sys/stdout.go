package sys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TakeStdout reserves standard output for its caller. Anything that the rest of this process, or a
// child that inherits it, writes there afterwards goes to standard error. Therefore a second call
// returns standard error. Writing to the file after its reader was closed returns an error and does
// not raise SIGPIPE, which Go raises for descriptors 1 and 2 only.
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

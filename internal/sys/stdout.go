package sys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TakeStdout reserves standard output for its caller. Afterwards, output that the rest of this
// process or its children write to standard output appears on standard error. A second call returns
// standard error, too. Writing to the file after its reader has closed returns an error and does
// not raise SIGPIPE, which Go raises only for descriptors 1 and 2.
func TakeStdout() (*os.File, error) {
	taken, err := unix.FcntlInt(uintptr(unix.Stdout), unix.F_DUPFD_CLOEXEC, unix.Stderr+1)
	if err != nil {
		return nil, fmt.Errorf("duplicating standard output: %w", err)
	}
	if err := unix.Dup3(unix.Stderr, unix.Stdout, 0); err != nil {
		_ = unix.Close(taken)
		return nil, fmt.Errorf("redirecting standard output to standard error: %w", err)
	}
	return os.NewFile(uintptr(taken), os.Stdout.Name()), nil
}

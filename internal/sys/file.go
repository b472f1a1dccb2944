package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CreateFile creates a file that only this user may read and write, and allocates its blocks, so
// that a full disk is an error here instead of a signal at a later store. path must not exist;
// symbolic links are not followed.
func CreateFile(path string, bytes int64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating a file: %w", err)
	}
	for {
		err = unix.Fallocate(int(f.Fd()), 0, 0, bytes)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("allocating %d bytes for %s: %w", bytes, path, err)
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return f, nil
}

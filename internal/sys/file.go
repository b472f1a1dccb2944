package sys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrLocked is returned by LockFile if another open file has the lock.
var ErrLocked = errors.New("the file is locked")

// CreateFile creates a file that only this user may access. It allocates all blocks, so that
// writing through a mapping cannot fail later.
func CreateFile(path string, bytes int64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating a file: %w", err)
	}

	err = repeatInterrupted(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, bytes) })
	if err == nil {
		return f, nil
	}

	folder := filepath.Dir(path)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS):
		err = fmt.Errorf("the filesystem of %s cannot allocate the blocks of a file: use a folder on "+
			"another filesystem, such as ext4, XFS or tmpfs (/dev/shm): %w", folder, err)
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		err = fmt.Errorf("allocating a file of %d bytes in %s: free space there, or use another "+
			"folder: %w", bytes, folder, err)
	default:
		err = fmt.Errorf("allocating a file of %d bytes in %s: %w", bytes, folder, err)
	}

	closeErr := f.Close()
	removeErr := os.Remove(path)
	return nil, errors.Join(err, closeErr, removeErr)
}

// LockFile locks a file until it is closed. It returns ErrLocked if another open file holds the
// lock. If the filesystem does not support locks, it returns nil without a lock.
func LockFile(f *os.File) error {
	err := repeatInterrupted(func() error {
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	})
	isUnsupported := errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) ||
		errors.Is(err, unix.ENOLCK) // NFS returns ENOLCK.
	switch {
	case err == nil || isUnsupported:
		return nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return ErrLocked
	}

	return fmt.Errorf("locking %s: %w", f.Name(), err)
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// repeatInterrupted repeats a system call while signals interrupt it. Go preempts goroutines by
// signals.
func repeatInterrupted(call func() error) error {
	for {
		err := call()
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

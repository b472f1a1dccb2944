package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"symmem/internal/sys"
)

// FileName returns the name of a rank's trace in its folder.
func FileName(rank int) string { return fmt.Sprintf("rank%d.trace", rank) }

// reservedPaths is the set of the paths of all traces that this process has created.
var reservedPaths sync.Map

// reservePath returns the path of a new trace, and creates the folder if necessary. The second
// trace of rank 3 in this process, for example, has the name world2-rank3.trace.
func reservePath(folder string, rank int) (string, error) {
	folder, err := createFolder(folder)
	if err != nil {
		return "", err
	}

	name := FileName(rank)
	path := filepath.Join(folder, name)
	for world := 2; ; world++ {
		_, isReserved := reservedPaths.LoadOrStore(path, true)
		if !isReserved {
			return path, nil
		}

		path = filepath.Join(folder, fmt.Sprintf("world%d-%s", world, name))
	}
}

// createFolder creates a folder unless it exists, and returns its absolute path. It refuses
// symbolic links.
func createFolder(folder string) (string, error) {
	absolute, err := filepath.Abs(folder)
	if err == nil {
		err = os.MkdirAll(absolute, 0o700)
	}

	if err != nil {
		return "", fmt.Errorf("creating the folder of traces: %w", err)
	}

	info, err := os.Lstat(absolute) // does not follow a symbolic link
	if err != nil || !info.IsDir() {
		notFolderErr := fmt.Errorf("the folder of traces, %s, is not a directory", absolute)
		return "", errors.Join(err, notFolderErr)
	}

	return absolute, nil
}

var temporaryCount atomic.Uint64

// temporaryName returns an unused path in the folder of path. An example of a name in process 4711
// on host1 is ".rank3.trace.host1.4711.1".
func temporaryName(path string) string {
	folder, name := filepath.Split(path)
	host, _ := os.Hostname() // "" if unknown; several hosts may share the folder
	number := temporaryCount.Add(1)
	temporary := fmt.Sprintf(".%s.%s.%d.%d", name, host, os.Getpid(), number)
	return filepath.Join(folder, temporary)
}

// moveIntoPlace renames the locked file temporary to path, and an older file at path to path.old.
// It returns an error if another process is writing the older file.
func moveIntoPlace(temporary, path string) error {
	for {
		err := os.Link(temporary, path) // fails if path exists, unlike os.Rename
		if err == nil {
			return os.Remove(temporary)
		}

		if !errors.Is(err, os.ErrExist) {
			return err
		}

		if err := addOldSuffix(path); err != nil {
			return err
		}

		// Try again; another process may have created a file at path meanwhile.
	}
}

// addOldSuffix renames path to path.old, or returns an error if another process is writing the
// file. It may do nothing if another process removes or replaces the file meanwhile.
func addOldSuffix(path string) error {
	info, statErr := os.Lstat(path)
	canBeLocked := statErr == nil && info.Mode().IsRegular()
	if canBeLocked {
		f, err := lockOldTrace(path)
		if err != nil {
			return err
		}

		defer f.Close() // releases the lock after the rename
		if !isFileAt(f, path) {
			return nil
		}
	}

	err := os.Rename(path, path+".old")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keeping the older trace: %w", err)
	}

	return nil
}

// lockOldTrace opens and locks a trace, or returns an error if a process is writing it.
func lockOldTrace(path string) (*os.File, error) {
	f, err := openForLock(path)
	if err != nil {
		return nil, fmt.Errorf("keeping the older trace: %w", err)
	}

	err = awaitLock(f)
	if err == nil {
		return f, nil
	}

	defer f.Close()
	if errors.Is(err, sys.ErrLocked) {
		return nil, fmt.Errorf("process %d is writing %s: use a different folder for each job",
			processIDOf(f), path)
	}

	return nil, fmt.Errorf("keeping the older trace: %w", err)
}

// openForLock opens a file for writing, if permitted, because NFS locks only such files. Otherwise,
// it opens the file for reading.
func openForLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrPermission) {
		return os.Open(path)
	}

	return f, err
}

// awaitLock locks a file, or returns sys.ErrLocked after 1 s. A killed process may keep its lock
// for some time, while a monitor reads /proc/PID/maps of the process.
func awaitLock(f *os.File) error {
	deadline := time.After(time.Second)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := sys.LockFile(f)
		if !errors.Is(err, sys.ErrLocked) {
			return err
		}

		select {
		case <-deadline:
			return sys.ErrLocked
		case <-ticker.C:
		}
	}
}

// isFileAt reports whether path still refers to the open file f.
func isFileAt(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}

	current, err := os.Lstat(path)
	return err == nil && os.SameFile(opened, current)
}

// processIDOf returns the ID of the process that created a trace, or 0 if it cannot be read.
func processIDOf(f *os.File) uint32 {
	var b [4]byte
	_, _ = f.ReadAt(b[:], offsetProcess) // leaves b zero after an error
	return binary.LittleEndian.Uint32(b[:])
}

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

// The trace of a rank is a file with its events. Rank 3 writes its trace to "rank3.trace" in a
// given folder. A process can be rank 3 of two worlds. Its second trace is called
// "world2-rank3.trace".
//
// A process locks its trace while it writes it. Suppose that rank3.trace exists already when rank 3
// creates its trace:
//
//   - If the file is locked, another process is writing it, so rank 3 gets an error.
//   - Otherwise, the file is left over from an earlier job, and becomes "rank3.trace.old".
//
// The new trace first has a temporary name. It moves to rank3.trace when it is locked.

// FileName returns the name of a rank's trace in its folder.
func FileName(rank int) string { return fmt.Sprintf("rank%d.trace", rank) }

// reservedPaths is the set of paths of the traces that this process has created.
var reservedPaths sync.Map // string -> true

// reservePath creates the folder if necessary. It returns the path for a new trace of a rank, and
// adds the path to reservedPaths.
func reservePath(folder string, rank int) (string, error) {
	folder, err := createFolder(folder)
	if err != nil {
		return "", err
	}

	path := filepath.Join(folder, FileName(rank))
	world := 2
	for {
		_, isReserved := reservedPaths.LoadOrStore(path, true)
		if !isReserved {
			return path, nil
		}

		path = filepath.Join(folder, fmt.Sprintf("world%d-%s", world, FileName(rank)))
		world++
	}
}

// createFolder creates a folder if necessary, and returns its absolute path. A symbolic link causes
// an error.
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

// temporaryCount is the number of names that temporaryName has returned.
var temporaryCount atomic.Uint64

// temporaryName returns an unused path in the folder of path, such as ".rank3.trace.host1.4711.1"
// in process 4711 on host1.
func temporaryName(path string) string {
	folder, name := filepath.Split(path)
	host, _ := os.Hostname() // processes on different hosts may have the same id
	number := temporaryCount.Add(1)
	temporary := fmt.Sprintf(".%s.%s.%d.%d", name, host, os.Getpid(), number)
	return filepath.Join(folder, temporary)
}

// moveIntoPlace renames temporary, which this process has locked, to path. An existing file at path
// gets the suffix ".old", or causes an error if another process is writing it.
func moveIntoPlace(temporary, path string) error {
	for {
		err := os.Link(temporary, path) // fails if path exists; a rename would replace the file
		if err == nil {
			return os.Remove(temporary)
		}

		if !errors.Is(err, os.ErrExist) {
			return err
		}

		if err := addOldSuffix(path); err != nil {
			return err
		}

		// Another process may have moved its trace to path in the meantime, so try again.
	}
}

// addOldSuffix renames the file at path to path.old. It returns an error if another process is
// writing the file. If another process removes or replaces the file meanwhile, it may do nothing.
func addOldSuffix(path string) error {
	info, err := os.Lstat(path)
	canBeLocked := err == nil && info.Mode().IsRegular() // not a symbolic link, for example
	if canBeLocked {
		f, err := openForLock(path)
		if err != nil {
			return fmt.Errorf("keeping the older trace: %w", err)
		}

		defer f.Close() // releases the lock, so only after the rename
		err = awaitLock(f)
		if errors.Is(err, sys.ErrLocked) {
			return fmt.Errorf("process %d is writing %s: use a different folder for each job",
				processIDOf(f), path)
		}

		if err != nil {
			return fmt.Errorf("keeping the older trace: %w", err)
		}

		if !isFileAt(f, path) {
			return nil // another process has removed or replaced the file
		}
	}

	err = os.Rename(path, path+".old")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keeping the older trace: %w", err)
	}

	return nil
}

// openForLock opens a file to lock it. On NFS, only files that are open for writing can be locked.
// A file that this user may only read is opened for reading.
func openForLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrPermission) {
		return os.Open(path)
	}

	return f, err
}

const (
	// lockWait is how long to wait for a lock. A lock can outlive a process that was killed: Linux
	// keeps it while another process, such as a monitor, reads the killed process's /proc/PID/maps.
	lockWait  = time.Second
	lockPause = 5 * time.Millisecond // between attempts to lock
)

// awaitLock locks a file. It returns sys.ErrLocked if another process keeps the lock for lockWait.
func awaitLock(f *os.File) error {
	deadline := time.After(lockWait)
	ticker := time.NewTicker(lockPause)
	defer ticker.Stop()
	for {
		err := sys.LockFile(f)
		if !errors.Is(err, sys.ErrLocked) {
			return err // nil if the file is now locked
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
	open, err := f.Stat()
	if err != nil {
		return false
	}

	current, err := os.Lstat(path)
	return err == nil && os.SameFile(open, current)
}

// processIDOf returns the id of the process that has created the trace in f. If the id cannot be
// read, it returns 0.
func processIDOf(f *os.File) uint32 {
	var b [4]byte
	_, _ = f.ReadAt(b[:], offsetProcess) // leaves b zero after an error
	return binary.LittleEndian.Uint32(b[:])
}

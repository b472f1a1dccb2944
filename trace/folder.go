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

// reservedPaths is the set of paths of the traces that this process has created. Several worlds in
// one process can have the same ranks, so their traces need different names.
var reservedPaths sync.Map // string -> true

// reservePath creates the folder. It returns a path in the folder that this process has not used,
// and adds the path to reservedPaths.
func reservePath(folder string, rank int) (string, error) {
	folder, err := filepath.Abs(folder)
	if err == nil {
		err = os.MkdirAll(folder, 0o700)
	}

	if err != nil {
		return "", fmt.Errorf("creating the folder of traces: %w", err)
	}

	info, err := os.Lstat(folder) // refuses symbolic links
	if err != nil || !info.IsDir() {
		notFolderErr := fmt.Errorf("the folder of traces, %s, is not a directory", folder)
		return "", errors.Join(err, notFolderErr)
	}

	path := filepath.Join(folder, FileName(rank))
	nextNumber := 2
	for {
		if _, isReserved := reservedPaths.LoadOrStore(path, true); !isReserved {
			return path, nil
		}

		path = filepath.Join(folder, fmt.Sprintf("world%d-%s", nextNumber, FileName(rank)))
		nextNumber++
	}
}

// temporaryCount makes the results of temporaryName distinct.
var temporaryCount atomic.Uint64

// temporaryName returns an unused name in the folder of path.
func temporaryName(path string) string {
	folder, name := filepath.Split(path)
	host, _ := os.Hostname() // processes on different hosts may have the same id
	number := temporaryCount.Add(1)
	temporary := fmt.Sprintf(".%s.%s.%d.%d", name, host, os.Getpid(), number)
	return filepath.Join(folder, temporary)
}

// moveIntoPlace renames temporary, which this process has locked, to path. An existing file at path
// gets the suffix ".old". If another process has locked that file, moveIntoPlace returns an error.
func moveIntoPlace(temporary, path string) error {
	for {
		err := os.Link(temporary, path) // unlike a rename, it does not replace a file
		if err == nil {
			return os.Remove(temporary)
		}

		if !errors.Is(err, os.ErrExist) {
			return err
		}

		if err := addOldSuffix(path); err != nil {
			return err
		}
	}
}

const (
	// lockWait is how long a lock may outlive a killed process. Linux keeps the lock while another
	// process, such as a monitor, reads /proc/PID/maps.
	lockWait = time.Second
	lockPoll = 5 * time.Millisecond // how often to try again during lockWait
)

// addOldSuffix renames the file at path to path.old. If another process is writing the file, it
// returns an error. If another process replaces the file meanwhile, it does nothing.
func addOldSuffix(path string) error {
	info, err := os.Lstat(path)
	isRegular := err == nil && info.Mode().IsRegular()
	if isRegular { // others, such as symbolic links, are renamed without a lock
		f, err := os.OpenFile(path, os.O_RDWR, 0) // NFS locks only files that are open for writing
		if errors.Is(err, os.ErrPermission) {
			f, err = os.Open(path)
		}

		if err != nil {
			return fmt.Errorf("keeping the older trace: %w", err)
		}

		defer f.Close() // after the rename, because it releases the lock
		err = awaitLock(f)
		if errors.Is(err, sys.ErrLocked) {
			return fmt.Errorf("process %d is writing %s: use a different folder for each job",
				processIDOf(f), path)
		}

		if err != nil {
			return fmt.Errorf("keeping the older trace: %w", err)
		}

		if !isFileAt(f, path) {
			return nil // another process has replaced the file
		}
	}

	err = os.Rename(path, path+".old")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keeping the older trace: %w", err)
	}

	return nil
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

// awaitLock locks a file. It returns sys.ErrLocked if the file is still locked after lockWait.
func awaitLock(f *os.File) error {
	deadline := time.After(lockWait)
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	for {
		if err := sys.LockFile(f); !errors.Is(err, sys.ErrLocked) {
			return err
		}

		select {
		case <-deadline:
			return sys.ErrLocked
		case <-poll.C:
		}
	}
}

// processIDOf returns the id of the process that has created the trace in f. If the file is too
// short, it returns 0.
func processIDOf(f *os.File) uint32 {
	var b [4]byte
	_, _ = f.ReadAt(b[:], offsetProcess) // leaves b zero after an error
	return binary.LittleEndian.Uint32(b[:])
}

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

var usedPaths sync.Map

// choosePath creates the folder and returns an unused path in it.
func choosePath(folder string, rank int) (string, error) {
	folder, err := filepath.Abs(folder)
	if err == nil {
		err = os.MkdirAll(folder, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("creating the folder of traces: %w", err)
	}
	if info, err := os.Lstat(folder); err != nil || !info.IsDir() {
		return "", errors.Join(err, fmt.Errorf("the folder of traces, %s, is not a directory", folder))
	}
	path := filepath.Join(folder, FileName(rank))
	for number := 2; ; number++ {
		if _, exists := usedPaths.LoadOrStore(path, true); !exists {
			return path, nil
		}
		path = filepath.Join(folder, fmt.Sprintf("world%d-%s", number, FileName(rank)))
	}
}

var temporaryCount atomic.Uint64

func temporaryName(path string) string {
	folder, name := filepath.Split(path)
	host, _ := os.Hostname() // processes on different hosts may have the same id
	return filepath.Join(folder,
		fmt.Sprintf(".%s.%s.%d.%d", name, host, os.Getpid(), temporaryCount.Add(1)))
}

// moveIntoPlace renames temporary, which this process has locked, to path. A file at path gets the
// suffix ".old"; if another process has locked it, moveIntoPlace returns an error.
func moveIntoPlace(temporary, path string) error {
	for {
		err := os.Link(temporary, path)
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

// lockWait is how long a lock may outlive a killed process. Linux keeps the lock while another
// process, such as a monitor, reads /proc/PID/maps.
const lockWait, lockPoll = time.Second, 5 * time.Millisecond

// addOldSuffix returns an error if another process has locked the file, and does nothing if another
// process replaces the file.
func addOldSuffix(path string) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_RDWR, 0) // NFS locks only files that are open for writing
		if errors.Is(err, os.ErrPermission) {
			f, err = os.Open(path)
		}
		if err != nil {
			return fmt.Errorf("keeping the older trace: %w", err)
		}
		defer f.Close()
		err = awaitLock(f)
		switch {
		case errors.Is(err, sys.ErrLocked):
			return fmt.Errorf("process %d is writing %s: use a different folder for each job",
				processIDOf(f), path)
		case err != nil:
			return fmt.Errorf("keeping the older trace: %w", err)
		case !isFileAt(f, path):
			return nil
		}
	}
	if err := os.Rename(path, path+".old"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keeping the older trace: %w", err)
	}
	return nil
}

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

func processIDOf(f *os.File) uint32 {
	var b [4]byte
	_, _ = f.ReadAt(b[:], offsetProcess) // 0 if the file is too short
	return binary.LittleEndian.Uint32(b[:])
}

package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"symmem/internal/sys"
)

// FileName returns the name of a rank's trace within a folder.
func FileName(rank int) string { return fmt.Sprintf("rank%d.trace", rank) }

// claimedPaths holds the paths of this process's traces, so that several worlds choose different
// paths.
var claimedPaths sync.Map

// claim creates the folder of traces and returns a path for a new trace in it.
func claim(folder string, rank int) (string, error) {
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
	for world := 2; ; world++ {
		if _, exists := claimedPaths.LoadOrStore(path, true); !exists {
			return path, nil
		}
		path = filepath.Join(folder, fmt.Sprintf("world%d-%s", world, FileName(rank)))
	}
}

// temporaries counts the temporary names of this process.
var temporaries atomic.Uint64

// temporaryName returns an unused hidden name in the folder of path.
func temporaryName(path string) string {
	folder, name := filepath.Split(path)
	host, _ := os.Hostname() // processes in containers that share the folder may have the same id
	return filepath.Join(folder,
		fmt.Sprintf(".%s.%s.%d.%d", name, host, os.Getpid(), temporaries.Add(1)))
}

// publish renames temporary, a file that this process has locked, to path. An existing file gets
// the suffix ".old"; if another process has locked it, publish returns an error.
func publish(temporary, path string) error {
	for {
		err := os.Link(temporary, path)
		if err == nil {
			return os.Remove(temporary)
		}
		if !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := retire(path); err != nil {
			return err
		}
	}
}

// retire adds the suffix ".old" to the name of a file, or returns an error if another process has
// locked it.
func retire(path string) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("keeping the older trace: %w", err)
		}
		defer f.Close()
		if err := sys.LockFile(f); errors.Is(err, sys.ErrLocked) {
			return fmt.Errorf("process %d is writing %s: use another folder for each job",
				processOf(f), path)
		}
	}
	if err := os.Rename(path, path+".old"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keeping the older trace: %w", err)
	}
	return nil
}

func processOf(f *os.File) uint32 {
	var b [4]byte
	_, _ = f.ReadAt(b[:], offsetProcess) // 0 if the file is too short
	return binary.LittleEndian.Uint32(b[:])
}

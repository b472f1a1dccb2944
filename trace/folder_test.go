package trace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"symmem/internal/sys"
)

// TestOneFileReplacesLockedFile moves two files to the place of a third one, which stays locked for
// a moment. The second must not replace the first.
func TestOneFileReplacesLockedFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, FileName(1))
	locked := func(name string) *os.File {
		t.Helper()
		f, err := sys.CreateFile(name, 4096)
		if err == nil {
			err = sys.LockFile(f)
		}

		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { f.Close() })
		return f
	}
	old, moved := locked(path), make(chan error)
	for range 2 {
		temporary := temporaryName(path)
		locked(temporary)
		go func() { moved <- moveIntoPlace(temporary, path) }()
	}

	timer := time.AfterFunc(12*time.Millisecond, func() { old.Close() })
	defer timer.Stop()
	if err := <-moved; err != nil {
		t.Errorf("moving the first file = %v, want nil", err)
	}

	if err := <-moved; err == nil || !strings.Contains(err.Error(), "is writing") {
		t.Errorf("moving the second file = %v, want an error that the file is being written", err)
	}
}

package sys

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCreateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if f, err := CreateFile(path, 1<<60); err == nil {
		_ = f.Close()
		t.Fatal("CreateFile of an exbibyte succeeded; want an error")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat = %v; want no file after a failure", err)
	}
	f, err := CreateFile(path, 8192)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := FileSize(f); n != 8192 || err != nil {
		t.Errorf("FileSize = %d, %v; want 8192", n, err)
	}
	_ = f.Close()
	if _, err := CreateFile(path, 1); !errors.Is(err, os.ErrExist) {
		t.Errorf("CreateFile of an existing file = %v; want ErrExist", err)
	}
}

// TestCreateFileWithoutFallocate creates a file on ramfs, which cannot allocate blocks in advance.
// A child process mounts the ramfs in new namespaces.
func TestCreateFileWithoutFallocate(t *testing.T) {
	const variable = "SYS_TEST_RAMFS"
	if folder := os.Getenv(variable); folder != "" {
		_, err := CreateFile(filepath.Join(folder, "file"), 4096)
		if err == nil || !strings.Contains(err.Error(), "use a folder on another filesystem") {
			t.Errorf("CreateFile on ramfs = %v; want advice to use another filesystem", err)
		}
		if names, err := os.ReadDir(folder); err != nil || len(names) > 0 {
			t.Errorf("ReadDir after a failure = %v, %v; want no files", names, err)
		}
		return
	}
	folder := t.TempDir()
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
		`mount -t ramfs ramfs "$1" || exit 77; exec "$2" -test.run "^$3$"`,
		"sh", folder, os.Args[0], t.Name())
	cmd.Env = append(os.Environ(), variable+"="+folder)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.Is(err, exec.ErrNotFound) ||
		errors.As(err, &exit) && (exit.ExitCode() == 77 || strings.HasPrefix(string(out), "unshare:")) {
		t.Skipf("cannot mount ramfs: %v, %s", err, out)
	}
	if err != nil {
		t.Errorf("creating a file on ramfs: %v\n%s", err, out)
	}
}

func TestLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	first, err := CreateFile(path, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := LockFile(first); err != nil {
		t.Fatal(err)
	}
	second, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := LockFile(second); !errors.Is(err, ErrLocked) {
		t.Errorf("LockFile of a locked file = %v; want ErrLocked", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := LockFile(second); err != nil {
		t.Errorf("LockFile after the lock was released = %v; want nil", err)
	}
	if err := LockFile(first); err == nil {
		t.Error("LockFile of a closed file = nil; want an error")
	}
}

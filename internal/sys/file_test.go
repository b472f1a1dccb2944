package sys

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCreateFile(t *testing.T) {
	const smallBytes, tooManyBytes = 8192, 1 << 60
	path := filepath.Join(t.TempDir(), "file")
	if f, err := CreateFile(path, tooManyBytes); err == nil {
		_ = f.Close()
		t.Fatal("CreateFile of more bytes than any disk has = nil error; want an error")
	}

	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat after a failed CreateFile = %v; want ErrNotExist", err)
	}

	f, err := CreateFile(path, smallBytes)
	if err != nil {
		t.Fatal(err)
	}

	if n, err := FileSize(f); n != smallBytes || err != nil {
		t.Errorf("FileSize = %d, %v; want %d", n, err, smallBytes)
	}

	_ = f.Close()
	if _, err := CreateFile(path, 1); !errors.Is(err, os.ErrExist) {
		t.Errorf("CreateFile of an existing file = %v; want ErrExist", err)
	}
}

func checkCreateFileOnRamfs(t *testing.T, folder string) {
	t.Helper()
	_, err := CreateFile(filepath.Join(folder, "file"), 4096)
	if err == nil || !strings.Contains(err.Error(), "use a folder on another filesystem") {
		t.Errorf("CreateFile on ramfs = %v; want advice to use another filesystem", err)
	}

	if names, err := os.ReadDir(folder); err != nil || len(names) > 0 {
		t.Errorf("ReadDir after a failed CreateFile = %v, %v; want no files", names, err)
	}
}

// A ramfs does not support fallocate. Only root may mount one, so the test runs itself in a child
// process that is root in new namespaces.
func TestCreateFileWithoutFallocate(t *testing.T) {
	const ramfsVariable = "SYS_TEST_RAMFS" // folder of the ramfs, set only in the child
	if folder := os.Getenv(ramfsVariable); folder != "" {
		checkCreateFileOnRamfs(t, folder)
		return
	}

	const cannotMount = 77 // arbitrary exit code, used by the script below
	const script = `mount -t ramfs ramfs "$1" || exit 77; exec "$2" -test.run "^$3$"`
	folder := t.TempDir()
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount",
		"sh", "-c", script, "sh", folder, os.Args[0], t.Name())
	cmd.Env = append(os.Environ(), ramfsVariable+"="+folder)
	out, err := cmd.CombinedOutput()
	var exitErr *exec.ExitError
	hasExited := errors.As(err, &exitErr)
	isMountError := hasExited && exitErr.ExitCode() == cannotMount
	// unshare and a failed test both exit with status 1.
	isUnshareError := hasExited && strings.HasPrefix(string(out), "unshare:")
	lacksUnshare := errors.Is(err, exec.ErrNotFound)
	if lacksUnshare || isMountError || isUnshareError {
		t.Skip(fmt.Errorf("mounting ramfs: %w: %w, %s", errors.ErrUnsupported, err, out))
	}

	if err != nil {
		t.Errorf("creating a file on ramfs: %v\n%s", err, out)
	}
}

// Opening a file twice does not share its lock.
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

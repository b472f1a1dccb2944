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

// TestCreateFile tries to create a file that is larger than the disk, which must fail and leave no
// file. Then it creates a small file. Creating it again must fail.
func TestCreateFile(t *testing.T) {
	const smallBytes, hugeBytes = 8192, 1 << 60
	path := filepath.Join(t.TempDir(), "file")
	if f, err := CreateFile(path, hugeBytes); err == nil {
		_ = f.Close()
		t.Fatal("CreateFile of an exbibyte = nil error; want an error")
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

// checkCreateFileOnRamfs checks that CreateFile in a folder on ramfs advises another filesystem,
// and leaves no file.
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

// TestCreateFileWithoutFallocate creates a file on ramfs, a filesystem that cannot allocate blocks
// in advance. Only root may mount one, so the test starts itself again: in a child process that is
// root in new namespaces. The child finds the folder of the ramfs in an environment variable.
func TestCreateFileWithoutFallocate(t *testing.T) {
	const variable = "SYS_TEST_RAMFS" // set only for the child process
	if folder := os.Getenv(variable); folder != "" {
		checkCreateFileOnRamfs(t, folder)
		return
	}

	const cannotMount = 77 // exit code of the shell command below
	folder := t.TempDir()
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
		`mount -t ramfs ramfs "$1" || exit 77; exec "$2" -test.run "^$3$"`,
		"sh", folder, os.Args[0], t.Name())
	cmd.Env = append(os.Environ(), variable+"="+folder)
	out, err := cmd.CombinedOutput()
	var exitErr *exec.ExitError
	hasExited := errors.As(err, &exitErr)
	isMountError := hasExited && exitErr.ExitCode() == cannotMount
	// unshare ends with status 1, as a failed test does, so only its message shows its failure.
	isUnshareError := hasExited && strings.HasPrefix(string(out), "unshare:")
	lacksUnshare := errors.Is(err, exec.ErrNotFound)
	if lacksUnshare || isMountError || isUnshareError {
		t.Skip(fmt.Errorf("mounting ramfs: %w: %w, %s", errors.ErrUnsupported, err, out))
	}

	if err != nil {
		t.Errorf("creating a file on ramfs: %v\n%s", err, out)
	}
}

// TestLockFile opens one file twice. While one descriptor holds the lock, the other cannot acquire
// it. Closing the first must release the lock.
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

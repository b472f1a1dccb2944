package sys

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMemfdHasSizeAndZeros(t *testing.T) {
	const bytes = 5 * 4096
	f := newMemory(t, bytes)
	size, err := FileSize(f)
	check(t, err)
	if size != bytes {
		t.Errorf("FileSize = %d, want %d", size, bytes)
	}

	m, err := Map(f, 0, bytes)
	check(t, err)
	for i, b := range bytesOf(m) {
		if b != 0 {
			t.Fatalf("byte %d is %d, want 0", i, b)
		}
	}

	check(t, m.Close())
}

func TestSealedMemfdKeepsSize(t *testing.T) {
	const bytes = 8192
	f := newMemory(t, bytes)
	check(t, SealSize(f))
	for _, newBytes := range []int64{0, bytes / 2, 2 * bytes} {
		if err := f.Truncate(newBytes); !errors.Is(err, syscall.EPERM) {
			t.Errorf("truncating to %d bytes: got %v, want EPERM", newBytes, err)
		}
	}

	if size, err := FileSize(f); err != nil || size != bytes {
		t.Errorf("FileSize = %d, %v; want %d", size, err, bytes)
	}
}

// Only memory files have seals.
func TestSealSizeOfFileFails(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	check(t, err)
	defer f.Close()
	if err := SealSize(f); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("SealSize = %v, want EINVAL", err)
	}
}

func TestFileSizeOfClosedFileFails(t *testing.T) {
	f, err := Memfd("test", 4096)
	check(t, err)
	check(t, f.Close())
	if _, err := FileSize(f); !errors.Is(err, syscall.EBADF) {
		t.Errorf("FileSize = %v, want EBADF", err)
	}
}

func TestMemfdRefusesNegativeSize(t *testing.T) {
	if f, err := Memfd("test", -1); err == nil {
		check(t, f.Close())
		t.Error("Memfd with -1 bytes returned no error")
	}
}

func TestHugeMemfdFailsWithoutHugePages(t *testing.T) {
	total, err := Memory()
	check(t, err)
	tooManyPages := 2*total/PageSize + 1
	f, err := HugeMemfd("test", tooManyPages*PageSize)
	if err == nil {
		check(t, f.Close())
		t.Error("HugeMemfd with twice the machine's memory returned no error")
	}
}

// The first fallocate is interrupted. The second fails after it has allocated half of the pages.
func TestFailedFillKeepsNoPages(t *testing.T) {
	const bytes = 8 * 4096
	f := newMemory(t, bytes)
	allocations := 0
	fallocate = func(fd int, mode uint32, offset, length int64) error {
		const allocate = 0
		if mode != allocate {
			return unix.Fallocate(fd, mode, offset, length) // frees pages
		}

		allocations++
		if allocations == 1 {
			return unix.EINTR
		}

		check(t, unix.Fallocate(fd, allocate, offset, length/2))
		return unix.ENOSPC
	}
	t.Cleanup(func() { fallocate = unix.Fallocate })
	if err := allocatePages(f, bytes); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("allocatePages = %v, want ENOSPC", err)
	}

	if n, err := AllocatedBytes(f); err != nil || n != 0 {
		t.Errorf("AllocatedBytes = %d, %v after a failed allocatePages, want 0", n, err)
	}

	if allocations != 2 {
		t.Errorf("allocatePages tried to allocate %d times, want 2", allocations)
	}
}

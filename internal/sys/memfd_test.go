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
	f := newMemory(t, 5*4096)
	size, err := FileSize(f)
	check(t, err)
	if size != 5*4096 {
		t.Errorf("the file has %d bytes, want %d", size, 5*4096)
	}
	m, err := Map(f, 0, 5*4096)
	check(t, err)
	for i, b := range bytesOf(m) {
		if b != 0 {
			t.Fatalf("byte %d is %d, want 0", i, b)
		}
	}
	check(t, m.Close())
}

func TestSealedMemfdKeepsSize(t *testing.T) {
	f := newMemory(t, 8192)
	check(t, SealSize(f))
	for _, bytes := range []int64{0, 4096, 16384} {
		if err := f.Truncate(bytes); !errors.Is(err, syscall.EPERM) {
			t.Errorf("truncating to %d bytes: got %v, want EPERM", bytes, err)
		}
	}
	if size, err := FileSize(f); err != nil || size != 8192 {
		t.Errorf("FileSize = %d, %v; want 8192", size, err)
	}
}

func TestSealSizeOfFileFails(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	check(t, err)
	defer f.Close()
	if err := SealSize(f); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v, want EINVAL", err)
	}
}

func TestFileSizeOfClosedFileFails(t *testing.T) {
	f, err := Memfd("test", 4096)
	check(t, err)
	check(t, f.Close())
	if _, err := FileSize(f); !errors.Is(err, syscall.EBADF) {
		t.Errorf("got %v, want EBADF", err)
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
	f, err := HugeMemfd("test", (2*total+PageSize-1)/PageSize*PageSize)
	if err == nil {
		check(t, f.Close())
		t.Error("HugeMemfd with twice the machine's memory returned no error")
	}
}

// TestFailedFillKeepsNoPages simulates an allocation that a signal interrupts and that then runs
// out of memory halfway.
func TestFailedFillKeepsNoPages(t *testing.T) {
	const bytes = 8 * 4096
	f := newMemory(t, bytes)
	callCount := 0
	fallocate = func(fd int, mode uint32, offset, length int64) error {
		if mode != 0 {
			return unix.Fallocate(fd, mode, offset, length)
		}
		if callCount++; callCount == 1 {
			return unix.EINTR
		}
		check(t, unix.Fallocate(fd, 0, offset, length/2))
		return unix.ENOSPC
	}
	t.Cleanup(func() { fallocate = unix.Fallocate })
	if err := allocatePages(f, bytes); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("allocatePages = %v, want ENOSPC", err)
	}
	if remaining, err := AllocatedBytes(f); err != nil || remaining != 0 {
		t.Errorf("AllocatedBytes = %d, %v after a failed allocatePages, want 0", remaining, err)
	}
	if callCount != 2 {
		t.Errorf("allocatePages called fallocate %d times, want 2", callCount)
	}
}

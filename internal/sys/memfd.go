package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// PageSize is the size of a huge page in bytes. Memory segments have multiples of this size on all
// ranks.
const PageSize = 2 << 20

// Memfd creates an anonymous shared file, which exists until the last process closes it.
func Memfd(name string, bytes int64) (*os.File, error) {
	return memfd(name, bytes, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
}

// HugeMemfd creates a Memfd with huge pages (/proc/sys/vm/nr_hugepages). bytes must be a multiple
// of PageSize.
func HugeMemfd(name string, bytes int64) (*os.File, error) {
	f, err := memfd(name, bytes, unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		return nil, err
	}
	// mmap reserves huge pages for the file. ftruncate does not, so a later access could raise
	// SIGBUS.
	if err := tryMapping(f, bytes); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func memfd(name string, bytes int64, flags int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, flags)
	if err != nil {
		return nil, fmt.Errorf("creating shared memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Ftruncate(fd, bytes); err != nil {
		f.Close()
		return nil, fmt.Errorf("setting the size of shared memory to %d bytes: %w", bytes, err)
	}
	return f, nil
}

// A failed mmap at a fixed address could unmap other memory, so the kernel chooses the address.
func tryMapping(f *os.File, bytes int64) error {
	base, err := mmap(nil, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, int(f.Fd()), 0)
	if err != nil {
		return fmt.Errorf("mapping %d bytes of huge pages: %w", bytes, err)
	}
	return unmap(base, bytes)
}

// FileSize returns a file's size in bytes.
func FileSize(f *os.File) (int64, error) {
	var status unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &status); err != nil {
		return 0, fmt.Errorf("measuring shared memory: %w", err)
	}
	return status.Size, nil
}

// SealSize prevents truncation, after which accesses to mappings would raise SIGBUS. Older kernels
// cannot seal huge pages.
func SealSize(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	if err != nil {
		return fmt.Errorf("sealing shared memory: %w", err)
	}
	return nil
}

// Discard frees the pages of a range in all processes. The range then contains zeros.
func Discard(f *os.File, offset, bytes int64) error {
	const punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if err := allocateFile(f, punchHole, offset, bytes); err != nil {
		return fmt.Errorf("discarding %d bytes of shared memory: %w", bytes, err)
	}
	return nil
}

// Refill allocates the huge pages that Discard has freed. If it fails, the file has no pages.
func Refill(f *os.File, bytes int64) error {
	var status unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &status); err != nil {
		return fmt.Errorf("measuring shared memory: %w", err)
	}
	if status.Blksize < PageSize {
		return nil
	}
	return fillPages(f, bytes)
}

func fillPages(f *os.File, bytes int64) error {
	if err := allocateFile(f, 0, 0, bytes); err != nil {
		err = fmt.Errorf("allocating %d bytes of huge pages: %w", bytes, err)
		return errors.Join(err, Discard(f, 0, bytes)) // The kernel keeps the pages allocated so far.
	}
	return nil
}

// fallocate can be replaced by tests.
var fallocate = unix.Fallocate

// The Go runtime interrupts system calls to preempt goroutines.
func allocateFile(f *os.File, mode uint32, offset, bytes int64) error {
	for {
		err := fallocate(int(f.Fd()), mode, offset, bytes)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// AllocatedBytes returns the number of bytes that a file's pages occupy.
func AllocatedBytes(f *os.File) (int64, error) {
	var status unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &status); err != nil {
		return 0, fmt.Errorf("measuring shared memory: %w", err)
	}
	return status.Blocks * 512, nil
}

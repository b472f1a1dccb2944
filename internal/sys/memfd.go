package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// PageSize is the size of a huge page in bytes.
const PageSize = 2 << 20

// Memfd creates a memory file, see memfd_create(2), of normal pages. The kernel allocates pages on
// their first access, and may combine them into transparent huge pages.
func Memfd(name string, bytes int64) (*os.File, error) {
	return memfd(name, bytes, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
}

// HugeMemfd creates a memory file of huge pages from the machine's pool, as configured in
// /proc/sys/vm/nr_hugepages. bytes must be a multiple of PageSize.
func HugeMemfd(name string, bytes int64) (*os.File, error) {
	f, err := memfd(name, bytes, unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		return nil, err
	}

	// Without a reservation, an access kills the process with SIGBUS if the pool is empty.
	if err := reserveHugePages(f, bytes); err != nil {
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

// reserveHugePages reserves all pages of a file, or fails if the pool has too few. The kernel
// reserves them in mmap, and keeps them reserved after munmap.
func reserveHugePages(f *os.File, bytes int64) error {
	const protection = unix.PROT_READ | unix.PROT_WRITE
	base, err := mmap(nil, bytes, protection, unix.MAP_SHARED, int(f.Fd()), 0)
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

// SealSize makes the size of a file from Memfd final. Otherwise, a process could truncate the file
// and cause SIGBUS in others. Files from HugeMemfd cannot be sealed.
func SealSize(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	if err != nil {
		return fmt.Errorf("sealing shared memory: %w", err)
	}

	return nil
}

// Discard frees the pages in a range of the file. All processes then read zeros there.
func Discard(f *os.File, offset, bytes int64) error {
	const punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if err := retryFallocate(f, punchHole, offset, bytes); err != nil {
		return fmt.Errorf("discarding %d bytes of shared memory: %w", bytes, err)
	}

	return nil
}

// Refill allocates the huge pages of the first bytes of a file after a Discard. After an error,
// such as too few free pages, none of them is allocated. Refill does nothing for normal pages,
// which the kernel allocates on access.
func Refill(f *os.File, bytes int64) error {
	var status unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &status); err != nil {
		return fmt.Errorf("measuring shared memory: %w", err)
	}

	hasHugePages := status.Blksize >= PageSize
	if !hasHugePages {
		return nil
	}

	return allocatePages(f, bytes)
}

// allocatePages allocates all pages of the first bytes of a file, or none after an error.
func allocatePages(f *os.File, bytes int64) error {
	const (
		allocate = 0 // mode of fallocate
		offset   = 0
	)
	if err := retryFallocate(f, allocate, offset, bytes); err != nil {
		err = fmt.Errorf("allocating %d bytes of huge pages: %w", bytes, err)
		// The kernel keeps pages that it allocated before the failure.
		discardErr := Discard(f, offset, bytes)
		return errors.Join(err, discardErr)
	}

	return nil
}

// fallocate is a variable so that tests can replace it.
var fallocate = unix.Fallocate

// retryFallocate calls fallocate until no signal interrupts it, such as the signal with which Go
// preempts goroutines.
func retryFallocate(f *os.File, mode uint32, offset, bytes int64) error {
	for {
		err := fallocate(int(f.Fd()), mode, offset, bytes)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// AllocatedBytes returns the size of a file's allocated pages.
func AllocatedBytes(f *os.File) (int64, error) {
	var status unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &status); err != nil {
		return 0, fmt.Errorf("measuring shared memory: %w", err)
	}

	const blockBytes = 512 // unit of st_blocks
	return status.Blocks * blockBytes, nil
}

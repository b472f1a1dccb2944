package sys

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PageSize is the size of a huge page, 2 MiB.
const PageSize = 2 << 20

// Memfd creates a memory file of normal pages, see memfd_create(2). The kernel allocates a page at
// the first access to it, and may combine pages into transparent huge pages.
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

	// Without a reservation, an access may find the pool empty and cause SIGBUS.
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

// reserveHugePages reserves all pages of a file, or fails if the pool has too few. mmap reserves
// them, and they stay reserved after munmap.
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
	status, err := statusOf(f)
	return status.Size, err
}

func statusOf(f *os.File) (unix.Stat_t, error) {
	var status unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &status); err != nil {
		return unix.Stat_t{}, fmt.Errorf("measuring shared memory: %w", err)
	}

	return status, nil
}

// SealSize makes the size of a file from Memfd final, so that no process can truncate the file and
// cause SIGBUS in others. Files from HugeMemfd cannot be sealed.
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
	err := repeatInterrupted(func() error {
		return fallocate(int(f.Fd()), punchHole, offset, bytes)
	})
	if err != nil {
		return fmt.Errorf("discarding %d bytes of shared memory: %w", bytes, err)
	}

	return nil
}

// FreePages is Discard for the whole normal pages in a range of mapped memory. It returns the
// number of freed bytes.
func FreePages(base unsafe.Pointer, bytes int64) (int64, error) {
	pageBytes := int64(os.Getpagesize())
	bytesBefore := bytesToMultiple(base, pageBytes)        // before the first page
	freedBytes := (bytes - bytesBefore) &^ (pageBytes - 1) // rounded down to whole pages
	if freedBytes <= 0 {
		return 0, nil
	}

	pages := unsafe.Slice((*byte)(unsafe.Add(base, bytesBefore)), freedBytes)
	if err := unix.Madvise(pages, unix.MADV_REMOVE); err != nil {
		return 0, fmt.Errorf("freeing %d bytes of shared memory: %w", freedBytes, err)
	}

	return freedBytes, nil
}

// Refill allocates huge pages for the first bytes of a file, after a Discard. After an error, such
// as too few free pages, all of these bytes are discarded. Refill does nothing for normal pages,
// which the kernel allocates on access.
func Refill(f *os.File, bytes int64) error {
	status, err := statusOf(f)
	if err != nil {
		return err
	}

	hasHugePages := status.Blksize >= PageSize // Blksize is the page size of a memory file.
	if !hasHugePages {
		return nil
	}

	return allocatePages(f, bytes)
}

// allocatePages allocates the pages of the first bytes of a file, or discards them after an error.
func allocatePages(f *os.File, bytes int64) error {
	const (
		allocate = 0 // mode of fallocate
		offset   = 0
	)
	err := repeatInterrupted(func() error {
		return fallocate(int(f.Fd()), allocate, offset, bytes)
	})
	if err != nil {
		err = fmt.Errorf("allocating %d bytes of huge pages: %w", bytes, err)
		discardErr := Discard(f, offset, bytes)
		return errors.Join(err, discardErr)
	}

	return nil
}

// fallocate is a variable so that tests can replace it.
var fallocate = unix.Fallocate

// AllocatedBytes returns the size of a file's allocated pages.
func AllocatedBytes(f *os.File) (int64, error) {
	const blockBytes = 512 // unit of st_blocks
	status, err := statusOf(f)
	return status.Blocks * blockBytes, err
}

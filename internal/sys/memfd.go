package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Processes share memory in the form of files. Such a file has no name in the file system: a
// process creates it with memfd_create(2), and gives its descriptor to other processes. The file
// exists until the last descriptor and mapping are gone.
//
// The memory consists of pages, which the kernel allocates when a process accesses them. Normal
// pages have 4 KiB. Huge pages have 2 MiB, and their number is limited: if there is none for an
// access, the kernel ends the process with SIGBUS. So they must be reserved or allocated before the
// access.

// PageSize is the size of a huge page in bytes. On all ranks, the size of a memory segment is a
// multiple of it.
const PageSize = 2 << 20

// Memfd creates a file of normal pages. If the system permits it, the kernel can combine them to
// huge pages, without a reservation.
func Memfd(name string, bytes int64) (*os.File, error) {
	return memfd(name, bytes, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
}

// HugeMemfd creates a file of huge pages. They come from a pool of the machine, whose size is set
// by /proc/sys/vm/nr_hugepages. bytes must be a multiple of PageSize.
func HugeMemfd(name string, bytes int64) (*os.File, error) {
	f, err := memfd(name, bytes, unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		return nil, err
	}

	// memfd has reserved no huge pages, but a mapping does.
	if err := tryMapping(f, bytes); err != nil {
		f.Close()
		return nil, err
	}

	return f, nil
}

// memfd creates a file with memfd_create and sets its size.
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

// tryMapping maps the file and unmaps it again. It fails if there are too few huge pages.
// Otherwise, they stay reserved for the file.
func tryMapping(f *os.File, bytes int64) error {
	const protection = unix.PROT_READ | unix.PROT_WRITE
	// The kernel chooses the address: a failed mmap at a fixed address could unmap other memory.
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

// SealSize makes the size of a file of Memfd final. Without this, a process could truncate the
// file, and other processes would get SIGBUS when they access its memory. SealSize fails for a file
// of HugeMemfd, which does not permit seals.
func SealSize(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	if err != nil {
		return fmt.Errorf("sealing shared memory: %w", err)
	}

	return nil
}

// Discard frees the pages of a range of the file, which all processes then read as zeros.
func Discard(f *os.File, offset, bytes int64) error {
	const punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if err := allocateFile(f, punchHole, offset, bytes); err != nil {
		return fmt.Errorf("discarding %d bytes of shared memory: %w", bytes, err)
	}

	return nil
}

// Refill allocates the huge pages of the first bytes of a file again, after Discard has freed them.
// If there are too few pages, it frees those that it has allocated, and returns an error. It does
// nothing for a file of normal pages.
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

// allocatePages allocates the pages of the first bytes of a file, or none of them after an error.
func allocatePages(f *os.File, bytes int64) error {
	const (
		allocate = 0 // mode of fallocate
		offset   = 0 // start of the range
	)
	if err := allocateFile(f, allocate, offset, bytes); err != nil {
		err = fmt.Errorf("allocating %d bytes of huge pages: %w", bytes, err)
		// The kernel keeps the pages that it allocated before the failure.
		discardErr := Discard(f, offset, bytes)
		return errors.Join(err, discardErr)
	}

	return nil
}

// fallocate is a variable so that tests can replace it.
var fallocate = unix.Fallocate

// allocateFile is fallocate, which frees or allocates a part of a file according to mode. It
// repeats the call while signals interrupt it. The Go runtime sends signals to preempt goroutines.
func allocateFile(f *os.File, mode uint32, offset, bytes int64) error {
	for {
		err := fallocate(int(f.Fd()), mode, offset, bytes)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// AllocatedBytes returns the number of bytes in the pages that a file has at present.
func AllocatedBytes(f *os.File) (int64, error) {
	var status unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &status); err != nil {
		return 0, fmt.Errorf("measuring shared memory: %w", err)
	}

	const blockBytes = 512 // unit of st_blocks
	return status.Blocks * blockBytes, nil
}

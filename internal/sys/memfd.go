package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// PageSize is the size of a huge page in bytes. Segments consist of such pages on all ranks, so
// that they have the same size on ranks with and without huge pages.
const PageSize = 2 << 20

// Memfd creates an anonymous shared file of the given size in bytes. The kernel frees it when the
// last process that uses it exits.
func Memfd(name string, bytes int64) (*os.File, error) {
	return memfd(name, bytes, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
}

// HugeMemfd creates a Memfd backed by 2 MiB huge pages. It returns an error if the system has
// reserved too few huge pages (/proc/sys/vm/nr_hugepages). bytes must be a multiple of PageSize.
func HugeMemfd(name string, bytes int64) (*os.File, error) {
	f, err := memfd(name, bytes, unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		return nil, err
	}
	// mmap reserves huge pages, but ftruncate does not. Without this probe, a shortage would make
	// mmap fail much later, or raise SIGBUS at the first access. The file keeps the reservation.
	if err := probe(f, bytes); err != nil {
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
		return nil, fmt.Errorf("sizing shared memory to %d bytes: %w", bytes, err)
	}
	return f, nil
}

// probe maps a file once. The kernel chooses the address, because a failed mmap at a fixed address
// could unmap other memory.
func probe(f *os.File, bytes int64) error {
	base, err := mmap(nil, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, int(f.Fd()), 0)
	if err != nil {
		return fmt.Errorf("mapping %d bytes of huge pages: %w", bytes, err)
	}
	return unmap(base, bytes)
}

// FileSize returns a file's size in bytes, as reported by the kernel.
func FileSize(f *os.File) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("measuring shared memory: %w", err)
	}
	return st.Size, nil
}

// SealSize prevents changes to the size of a memfd. Without the seal, another process could
// truncate the file, and accesses to a mapping of it would fault. Older kernels return an error for
// files with huge pages, which callers may ignore: only ranks of the same user have the descriptor.
func SealSize(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	if err != nil {
		return fmt.Errorf("sealing shared memory: %w", err)
	}
	return nil
}

// Discard frees the pages of a range of a memfd, in all processes that map it. Afterwards, the
// range contains zeros.
func Discard(f *os.File, offset, bytes int64) error {
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if err := allocateFile(f, punch, offset, bytes); err != nil {
		return fmt.Errorf("discarding %d bytes of shared memory: %w", bytes, err)
	}
	return nil
}

// Refill allocates the pages of a memfd with huge pages that Discard has freed. Otherwise, a later
// access could raise SIGBUS. For other files, Refill does nothing. If it fails, the file has no
// pages, as after Discard.
func Refill(f *os.File, bytes int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("measuring shared memory: %w", err)
	}
	if st.Blksize < PageSize {
		return nil
	}
	return fill(f, bytes)
}

func fill(f *os.File, bytes int64) error {
	if err := allocateFile(f, 0, 0, bytes); err != nil {
		err = fmt.Errorf("allocating %d bytes of huge pages: %w", bytes, err)
		return errors.Join(err, Discard(f, 0, bytes)) // the kernel keeps the pages allocated so far
	}
	return nil
}

// fallocate allocates or frees pages of a file. Tests replace it.
var fallocate = unix.Fallocate

// allocateFile repeats fallocate as long as signals interrupt it. The Go runtime sends signals to
// threads to preempt goroutines.
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
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("measuring shared memory: %w", err)
	}
	return st.Blocks * 512, nil
}

package sys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// PageSize is the size in bytes of a huge page, and the granularity of segments: a memfd backed
// by huge pages can only grow by whole ones, and one size everywhere keeps segments alike on
// ranks that have huge pages and ranks that have not.
const PageSize = 2 << 20

// Memfd makes an anonymous shared file of the given size in bytes. Nothing names it in a file
// system, so nothing is left behind when its last holder is killed.
func Memfd(name string, bytes int64) (*os.File, error) {
	return memfd(name, bytes, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
}

// HugeMemfd makes a Memfd backed by 2 MiB huge pages. It fails where the system has set none
// aside (/proc/sys/vm/nr_hugepages); bytes must be a multiple of PageSize.
func HugeMemfd(name string, bytes int64) (*os.File, error) {
	f, err := memfd(name, bytes, unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		return nil, err
	}
	// Huge pages are reserved by mmap, not by ftruncate: without this probe the shortage would
	// show as a failed mapping much later, or as SIGBUS at the first touch. The file keeps the
	// reservation when the mapping is gone.
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

// probe maps a file once, at an address of the kernel's choice: a mapping at a given address that
// fails takes with it what was there before.
func probe(f *os.File, bytes int64) error {
	base, err := mmap(nil, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, int(f.Fd()), 0)
	if err != nil {
		return fmt.Errorf("mapping %d bytes of huge pages: %w", bytes, err)
	}
	return unmap(base, bytes)
}

// FileSize returns the size of a file in bytes, as the kernel knows it. A descriptor that came
// from another process is measured, never believed.
func FileSize(f *os.File) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("measuring shared memory: %w", err)
	}
	return st.Size, nil
}

// SealSize forbids any change of a memfd's size, so that a mapping of it can never fault because
// somebody made it shorter. Huge page files cannot be sealed on older kernels: that is not an
// error, since only the ranks of one user hold the descriptor.
func SealSize(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	if err != nil {
		return fmt.Errorf("sealing shared memory: %w", err)
	}
	return nil
}

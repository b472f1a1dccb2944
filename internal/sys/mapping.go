package sys

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mapping is a range of addresses. It is either shared memory, or a reservation, which has no
// memory but keeps the addresses from other uses. For example, a pool reserves 1 GiB of addresses,
// so that its memory can grow:
//
//	reservation, err := Reserve(1<<30, PageSize)
//	first, err := reservation.MapAt(0, file1, 2<<20)      // memory at the first 2 MiB
//	second, err := reservation.MapAt(2<<20, file2, 4<<20) // memory at the next 4 MiB
//
// When second is closed, its 4 MiB of addresses are reserved again.
type Mapping struct {
	base  unsafe.Pointer // first address; nil after Close or Keep
	bytes int64          // length of the range
	// inReservation is set for a range of MapAt. Close then reserves the addresses again, because
	// other memory could otherwise be mapped there.
	inReservation bool
	// origin is the stack of the creator with the build tag invariants, and otherwise empty.
	origin origin
}

// Reserve reserves a range of addresses without memory. The first address is a multiple of align,
// which must be a power of two.
func Reserve(bytes, align int64) (*Mapping, error) {
	const noExtraFlags = 0
	reserved, err := reserveAddresses(nil, bytes+align, noExtraFlags)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of addresses: %w", bytes, err)
	}

	// The range begins at the first multiple of align. Unmap the addresses before and after it. After
	// a failure of unmap, these addresses only stay reserved.
	skippedBytes := int64(-uintptr(reserved) & uintptr(align-1)) // up to this multiple
	base := unsafe.Add(reserved, skippedBytes)
	unmap(reserved, skippedBytes)
	unmap(unsafe.Add(base, bytes), align-skippedBytes)
	const inReservation = false
	return newMapping(base, bytes, inReservation), nil
}

// reserveAddresses maps a range without memory. Without extraFlags, the kernel chooses the address,
// which the function returns.
func reserveAddresses(
	address unsafe.Pointer, bytes int64, extraFlags int,
) (unsafe.Pointer, error) {
	const noFile = -1
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | extraFlags
	return mmap(address, bytes, unix.PROT_NONE, flags, noFile, 0)
}

// MapAt maps the first bytes of a shared file over the part of the reservation m that begins at
// offset. The new Mapping must be closed before m.
func (m *Mapping) MapAt(offset int64, f *os.File, bytes int64) (*Mapping, error) {
	if offset < 0 || bytes <= 0 || offset+bytes > m.bytes {
		return nil, fmt.Errorf("mapping [%d, %d) into a reservation of %d bytes: %w",
			offset, offset+bytes, m.bytes, unix.EINVAL)
	}

	base := unsafe.Add(m.base, offset)
	const fileOffset = 0
	if err := mapFixed(base, f, fileOffset, bytes); err != nil {
		reserveAgain(base, bytes)
		return nil, err
	}

	const inReservation = true
	return newMapping(base, bytes, inReservation), nil
}

// Map maps part of a shared file for reading and writing, at an address aligned to PageSize.
func Map(f *os.File, offset, bytes int64) (*Mapping, error) {
	m, err := Reserve(bytes, PageSize)
	if err != nil {
		return nil, err
	}

	err = mapFixed(m.base, f, offset, bytes)
	if err == nil {
		return m, nil
	}

	isReserved := reserveAgain(m.base, bytes)
	if isReserved {
		closeErr := m.Close()
		err = errors.Join(err, closeErr)
	}

	return nil, err
}

// mapFixed maps a part of a file at base, and replaces what is mapped there. After an error, the
// range may be unmapped.
func mapFixed(base unsafe.Pointer, f *os.File, offset, bytes int64) error {
	_, err := mmap(base, bytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED, int(f.Fd()), offset)
	if err != nil {
		return fmt.Errorf("mapping %d bytes of shared memory: %w", bytes, err)
	}

	// Ask for huge pages. They have 2 MiB instead of 4 KiB, so there are 512 times fewer page faults.
	_ = unix.Madvise(unsafe.Slice((*byte)(base), bytes), unix.MADV_HUGEPAGE)
	return nil
}

// reserveAgain reserves a range after a failed mapFixed, which may have unmapped the range. It
// returns false if another thread may have mapped other memory there meanwhile. The caller must
// then neither use nor unmap the range.
func reserveAgain(base unsafe.Pointer, bytes int64) bool {
	// With this flag, the kernel returns an error instead of replacing other memory.
	_, err := reserveAddresses(base, bytes, unix.MAP_FIXED_NOREPLACE)
	return err == nil
}

// newMapping returns a Mapping. With the build tag invariants, OpenMappings then lists it.
func newMapping(base unsafe.Pointer, bytes int64, inReservation bool) *Mapping {
	m := &Mapping{base: base, bytes: bytes, inReservation: inReservation}
	m.origin.record(m)
	return m
}

// Base returns the first address.
func (m *Mapping) Base() unsafe.Pointer { return m.base }

// Address returns the first address as a number.
func (m *Mapping) Address() uintptr { return uintptr(m.base) }

// Bytes returns the length of the range.
func (m *Mapping) Bytes() int64 { return m.bytes }

// Populate allocates the pages of a part of the mapping in advance. offset must be a multiple of
// PageSize. On kernels before 5.14, it does nothing.
func (m *Mapping) Populate(offset, bytes int64) {
	part := unsafe.Slice((*byte)(unsafe.Add(m.base, offset)), bytes)
	_ = unix.Madvise(part, unix.MADV_POPULATE_WRITE) // after a failure, stores allocate the pages
}

// Protect allows or prevents access to the mapping's memory.
func (m *Mapping) Protect(allowAccess bool) error {
	protection := unix.PROT_NONE
	if allowAccess {
		protection = unix.PROT_READ | unix.PROT_WRITE
	}

	if err := unix.Mprotect(unsafe.Slice((*byte)(m.base), m.bytes), protection); err != nil {
		return fmt.Errorf("changing the access to %d bytes: %w", m.bytes, err)
	}

	return nil
}

// Shrink shortens a reservation to a size, rounded up to a multiple of PageSize. It does nothing if
// the reservation is not longer, or is closed.
func (m *Mapping) Shrink(bytes int64) error {
	newBytes := (bytes + PageSize - 1) &^ (PageSize - 1)
	isClosed := m.base == nil
	if isClosed || newBytes >= m.bytes {
		return nil
	}

	if newBytes <= 0 || m.inReservation {
		return fmt.Errorf("shrinking %d bytes to %d: %w", m.bytes, newBytes, unix.EINVAL)
	}

	removedBytes := m.bytes - newBytes
	m.bytes = newBytes
	return unmap(unsafe.Add(m.base, newBytes), removedBytes)
}

// Keep leaves the range mapped until the process exits. The Mapping must not be used afterwards.
func (m *Mapping) Keep() {
	m.origin.forget(m)
	m.base = nil
}

// ErrUnmapped is returned by a second Close. With the build tag invariants, Close panics.
var ErrUnmapped = errors.New("the mapping is already closed")

// Close unmaps the range. A range of MapAt becomes reserved again.
func (m *Mapping) Close() error {
	if m.base == nil {
		m.origin.reportSecondClose()
		return ErrUnmapped
	}

	m.origin.forget(m)
	base := m.base
	m.base = nil
	if !m.inReservation {
		return unmap(base, m.bytes)
	}

	// MAP_FIXED replaces the shared memory in one step, so that no other memory gets there.
	_, err := reserveAddresses(base, m.bytes, unix.MAP_FIXED)
	return err
}

// mmap is the system call of this name.
func mmap(
	address unsafe.Pointer, bytes int64, prot, flags, fd int, offset int64,
) (unsafe.Pointer, error) {
	return unix.MmapPtr(fd, offset, address, uintptr(bytes), prot, flags)
}

// unmap is the system call munmap, but accepts an empty range.
func unmap(base unsafe.Pointer, bytes int64) error {
	if bytes == 0 {
		return nil
	}

	if err := unix.MunmapPtr(base, uintptr(bytes)); err != nil {
		return fmt.Errorf("unmapping %d bytes: %w", bytes, err)
	}

	return nil
}

// IsReadable reports whether the byte at an address of this process is readable. It also returns
// true if the system does not permit this check.
func IsReadable(address uintptr) bool {
	var buffer [1]byte
	local := []unix.Iovec{{Base: &buffer[0], Len: 1}}
	remote := []unix.RemoteIovec{{Base: address, Len: 1}}
	// In contrast to a plain load, the system call returns an error for an invalid address.
	_, err := unix.ProcessVMReadv(unix.Getpid(), local, remote, 0)
	return !errors.Is(err, unix.EFAULT)
}

// FreePages frees the pages that lie completely in a range of shared memory, and returns the number
// of freed bytes. All processes that map the pages then read zeros.
func FreePages(base unsafe.Pointer, bytes int64) (int64, error) {
	pageBytes := int64(os.Getpagesize())
	skippedBytes := int64(-uintptr(base) & uintptr(pageBytes-1)) // before the first whole page
	if bytes < skippedBytes {
		return 0, nil
	}

	freedBytes := (bytes - skippedBytes) &^ (pageBytes - 1) // rounded down to whole pages
	if freedBytes == 0 {
		return 0, nil
	}

	pages := unsafe.Slice((*byte)(unsafe.Add(base, skippedBytes)), freedBytes)
	if err := unix.Madvise(pages, unix.MADV_REMOVE); err != nil {
		return 0, fmt.Errorf("freeing %d bytes of shared memory: %w", freedBytes, err)
	}

	return freedBytes, nil
}

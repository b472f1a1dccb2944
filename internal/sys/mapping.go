package sys

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mapping is a range of addresses: a reservation, which has no memory, or shared memory.
type Mapping struct {
	base  unsafe.Pointer // nil after Close or Keep
	bytes int64
	// inReservation is set for a range of MapAt. Close then reserves the addresses again, because
	// other memory could otherwise be mapped there.
	inReservation bool
	origin        origin // stack of the creator
}

// ErrUnmapped is returned by a second Close. With the build tag invariants, Close panics.
var ErrUnmapped = errors.New("the mapping is already closed")

// Reserve reserves a range of addresses without memory. The first address is a multiple of align,
// which must be a power of two.
func Reserve(bytes, align int64) (*Mapping, error) {
	reserved, err := mmap(nil, bytes+align, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1, 0)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of addresses: %w", bytes, err)
	}
	skippedBytes := int64(-uintptr(reserved) & uintptr(align-1))
	base := unsafe.Add(reserved, skippedBytes)
	unmap(reserved, skippedBytes)
	unmap(unsafe.Add(base, bytes), align-skippedBytes)
	return newMapping(base, bytes, false), nil
}

// Map maps part of a shared file for reading and writing, at an address aligned to PageSize.
func Map(f *os.File, offset, bytes int64) (*Mapping, error) {
	m, err := Reserve(bytes, PageSize)
	if err != nil {
		return nil, err
	}
	if err := mapFixed(m.base, f, offset, bytes); err != nil {
		if reserveAgain(m.base, bytes) {
			err = errors.Join(err, m.Close())
		}
		return nil, err
	}
	return m, nil
}

// MapAt maps the first bytes of a shared file over a part of the reservation m, which begins at
// offset. The new Mapping must be closed before m.
func (m *Mapping) MapAt(offset int64, f *os.File, bytes int64) (*Mapping, error) {
	if offset < 0 || bytes <= 0 || offset+bytes > m.bytes {
		return nil, fmt.Errorf("mapping [%d, %d) into a reservation of %d bytes: %w",
			offset, offset+bytes, m.bytes, unix.EINVAL)
	}
	base := unsafe.Add(m.base, offset)
	if err := mapFixed(base, f, 0, bytes); err != nil {
		reserveAgain(base, bytes)
		return nil, err
	}
	return newMapping(base, bytes, true), nil
}

// newMapping returns a Mapping, which it records as open (see OpenMappings).
func newMapping(base unsafe.Pointer, bytes int64, inReservation bool) *Mapping {
	m := &Mapping{base: base, bytes: bytes, inReservation: inReservation}
	m.origin.record(m)
	return m
}

// mapFixed maps a part of a file at base, and replaces what is mapped there.
func mapFixed(base unsafe.Pointer, f *os.File, offset, bytes int64) error {
	_, err := mmap(base, bytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED, int(f.Fd()), offset)
	if err != nil {
		return fmt.Errorf("mapping %d bytes of shared memory: %w", bytes, err)
	}
	// Transparent huge pages, if the system supports them, reduce page faults by a factor of 512.
	_ = unix.Madvise(unsafe.Slice((*byte)(base), bytes), unix.MADV_HUGEPAGE)
	return nil
}

// reserveAgain reserves a range after a failed mmap, which may have unmapped the range. It returns
// false if another thread may have mapped other memory there meanwhile. The caller must then
// neither use nor unmap the range.
func reserveAgain(base unsafe.Pointer, bytes int64) bool {
	_, err := mmap(base, bytes, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE, -1, 0)
	return err == nil
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

// Shrink shortens a reservation to a size, rounded up to a multiple of PageSize.
func (m *Mapping) Shrink(bytes int64) error {
	bytes = (bytes + PageSize - 1) &^ (PageSize - 1)
	if m.base == nil || bytes >= m.bytes {
		return nil
	}
	if bytes <= 0 || m.inReservation {
		return fmt.Errorf("shrinking %d bytes to %d: %w", m.bytes, bytes, unix.EINVAL)
	}
	removedBytes := m.bytes - bytes
	m.bytes = bytes
	return unmap(unsafe.Add(m.base, bytes), removedBytes)
}

// Keep leaves the range mapped until the process exits. The Mapping must not be used afterwards.
func (m *Mapping) Keep() {
	m.origin.forget(m)
	m.base = nil
}

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
	_, err := mmap(base, m.bytes, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED, -1, 0)
	return err
}

func mmap(
	address unsafe.Pointer, bytes int64, prot, flags, fd int, offset int64,
) (unsafe.Pointer, error) {
	return unix.MmapPtr(fd, offset, address, uintptr(bytes), prot, flags)
}

func unmap(base unsafe.Pointer, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	if err := unix.MunmapPtr(base, uintptr(bytes)); err != nil {
		return fmt.Errorf("unmapping %d bytes: %w", bytes, err)
	}
	return nil
}

// IsReadable reports whether the byte at an address is readable, or the check is not permitted.
func IsReadable(address uintptr) bool {
	var buffer [1]byte
	local := []unix.Iovec{{Base: &buffer[0], Len: 1}}
	remote := []unix.RemoteIovec{{Base: address, Len: 1}}
	_, err := unix.ProcessVMReadv(unix.Getpid(), local, remote, 0)
	return !errors.Is(err, unix.EFAULT)
}

// FreePages frees all pages inside a range of shared memory, in all processes, and returns the
// number of freed bytes. The pages then contain zeros.
func FreePages(base unsafe.Pointer, bytes int64) (int64, error) {
	page := uintptr(os.Getpagesize())
	skippedBytes := -uintptr(base) & (page - 1)
	if bytes < int64(skippedBytes) {
		return 0, nil
	}
	size := (bytes - int64(skippedBytes)) &^ int64(page-1)
	if size == 0 {
		return 0, nil
	}
	pages := unsafe.Slice((*byte)(unsafe.Add(base, skippedBytes)), size)
	if err := unix.Madvise(pages, unix.MADV_REMOVE); err != nil {
		return 0, fmt.Errorf("freeing %d bytes of shared memory: %w", size, err)
	}
	return size, nil
}

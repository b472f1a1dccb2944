package sys

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mapping is a range of addresses: mapped shared memory, or a reservation without memory. A pool
// reserves 1 GiB of addresses so that its memory can grow:
//
//	reservation, err := Reserve(1<<30, PageSize)
//	first, err := reservation.MapAt(0, file1, 2<<20)      // memory at the first 2 MiB
//	second, err := reservation.MapAt(2<<20, file2, 4<<20) // memory at the next 4 MiB
//	err = second.Close()                                  // the 4 MiB are reserved again
type Mapping struct {
	base          unsafe.Pointer // first address; nil after Close or Keep
	bytes         int64          // length of the range
	inReservation bool           // created by MapAt
	origin        origin         // where it was created, if built with the tag invariants
}

// Reserve reserves a range of addresses that starts at a multiple of align, a power of two.
func Reserve(bytes, align int64) (*Mapping, error) {
	const noExtraFlags = 0
	reserved, err := reserveAddresses(nil, bytes+align, noExtraFlags)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of addresses: %w", bytes, err)
	}

	bytesBefore := bytesToMultiple(reserved, align)
	bytesAfter := align - bytesBefore
	base := unsafe.Add(reserved, bytesBefore)
	// If unmap fails, the addresses before and after the aligned range stay reserved.
	unmap(reserved, bytesBefore)
	unmap(unsafe.Add(base, bytes), bytesAfter)
	return newMapping(base, bytes), nil
}

// bytesToMultiple returns the distance from an address to the next multiple of align, a power of
// two.
func bytesToMultiple(address unsafe.Pointer, align int64) int64 {
	return int64(-uintptr(address) & uintptr(align-1))
}

func newMapping(base unsafe.Pointer, bytes int64) *Mapping {
	m := &Mapping{base: base, bytes: bytes}
	m.origin.record(m)
	return m
}

// MapAt maps the first bytes of a shared file at an offset of the reservation. Close the new
// Mapping before the reservation.
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

	mapped := newMapping(base, bytes)
	mapped.inReservation = true
	return mapped, nil
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

	canUnmap := reserveAgain(m.base, bytes)
	if canUnmap {
		closeErr := m.Close()
		err = errors.Join(err, closeErr)
	}

	return nil, err
}

// Base returns the first address.
func (m *Mapping) Base() unsafe.Pointer { return m.base }

// Address returns the first address as a number.
func (m *Mapping) Address() uintptr { return uintptr(m.base) }

// Bytes returns the length of the range.
func (m *Mapping) Bytes() int64 { return m.bytes }

// Populate allocates the pages of a part of the mapping in advance. offset must be a multiple of
// PageSize. Populate does nothing on kernels before 5.14.
func (m *Mapping) Populate(offset, bytes int64) {
	pages := unsafe.Slice((*byte)(unsafe.Add(m.base, offset)), bytes)
	// If this fails, the first store to each page allocates it.
	_ = unix.Madvise(pages, unix.MADV_POPULATE_WRITE)
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

// Shrink shortens a reservation to a number of bytes, rounded up to a multiple of PageSize. It does
// nothing if the reservation is closed or short enough.
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

// Keep leaves the range mapped until the process exits. The caller must not use m afterwards.
func (m *Mapping) Keep() {
	m.origin.forget(m)
	m.base = nil
}

// ErrUnmapped is returned by a second Close. With the build tag invariants, a second Close panics
// instead.
var ErrUnmapped = errors.New("the mapping is already closed")

// Close unmaps the range, or reserves it again if MapAt created it.
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

	// MAP_FIXED replaces the memory in one step, so no other thread can map something there.
	_, err := reserveAddresses(base, m.bytes, unix.MAP_FIXED)
	return err
}

// mapFixed maps a part of a file at base and replaces earlier mappings. After a failure, the range
// may be unmapped.
func mapFixed(base unsafe.Pointer, f *os.File, offset, bytes int64) error {
	_, err := mmap(base, bytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED, int(f.Fd()), offset)
	if err != nil {
		return fmt.Errorf("mapping %d bytes of shared memory: %w", bytes, err)
	}

	// Huge pages are faster, but normal pages work too.
	_ = unix.Madvise(unsafe.Slice((*byte)(base), bytes), unix.MADV_HUGEPAGE)
	return nil
}

// reserveAgain reserves a range that a failed mapFixed may have unmapped. If canUnmap is false, the
// range may belong to another thread.
func reserveAgain(base unsafe.Pointer, bytes int64) (canUnmap bool) {
	// MAP_FIXED_NOREPLACE fails instead of replacing memory of another thread.
	_, err := reserveAddresses(base, bytes, unix.MAP_FIXED_NOREPLACE)
	return err == nil
}

// reserveAddresses maps inaccessible pages and returns their address. The kernel chooses the
// address unless extraFlags contain MAP_FIXED or MAP_FIXED_NOREPLACE.
func reserveAddresses(
	address unsafe.Pointer, bytes int64, extraFlags int,
) (unsafe.Pointer, error) {
	const noFile = -1
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | extraFlags
	return mmap(address, bytes, unix.PROT_NONE, flags, noFile, 0)
}

func mmap(
	address unsafe.Pointer, bytes int64, prot, flags, fd int, offset int64,
) (unsafe.Pointer, error) {
	return unix.MmapPtr(fd, offset, address, uintptr(bytes), prot, flags)
}

// unmap is munmap(2), but accepts an empty range.
func unmap(base unsafe.Pointer, bytes int64) error {
	if bytes == 0 {
		return nil
	}

	if err := unix.MunmapPtr(base, uintptr(bytes)); err != nil {
		return fmt.Errorf("unmapping %d bytes: %w", bytes, err)
	}

	return nil
}

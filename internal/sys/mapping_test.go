package sys

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"symmem/internal/invariants"
)

// check ends the test if err is not nil.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newMemory returns a memory file, which is closed at the end of the test.
func newMemory(t *testing.T, bytes int64) *os.File {
	t.Helper()
	f, err := Memfd("test", bytes)
	check(t, err)
	t.Cleanup(func() { check(t, f.Close()) })
	return f
}

// bytesOf returns the memory of a mapping.
func bytesOf(m *Mapping) []byte { return unsafe.Slice((*byte)(m.Base()), m.Bytes()) }

// closeAgain returns the error of a second Close. With the build tag invariants, Close must panic
// instead. closeAgain then returns ErrUnmapped for the panic, so that callers expect the same.
func closeAgain(m *Mapping) (err error) {
	defer func() {
		r := recover()
		hasPanicked := r != nil
		if hasPanicked != invariants.Enabled {
			err = fmt.Errorf("recovered %v, want a panic only with the tag invariants", r)
		} else if hasPanicked {
			err = ErrUnmapped
		}
	}()
	return m.Close()
}

// TestReservationsAreAligned reserves address space with alignments below, at and above PageSize.
func TestReservationsAreAligned(t *testing.T) {
	for _, align := range []int64{4096, PageSize, 64 << 20} {
		for _, bytes := range []int64{4096, PageSize, 3*PageSize + 4096} {
			r, err := Reserve(bytes, align)
			check(t, err)
			if r.Address()%uintptr(align) != 0 || r.Bytes() != bytes {
				t.Errorf("Reserve(%d, %d) = %d bytes at %#x, want %d bytes at an aligned address",
					bytes, align, r.Bytes(), r.Address(), bytes)
			}

			check(t, r.Close())
			if err := closeAgain(r); !errors.Is(err, ErrUnmapped) {
				t.Errorf("second Close = %v, want ErrUnmapped", err)
			}
		}
	}
}

func TestReserveReturnsSystemError(t *testing.T) {
	const tooManyBytes = 1 << 60 // more than the address space of a process
	r, err := Reserve(tooManyBytes, PageSize)
	if !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("Reserve(%d) = %v, want ENOMEM", int64(tooManyBytes), err)
	}

	if err == nil {
		check(t, r.Close())
	}
}

// TestMappingsOfFileShareMemory maps a file of three pages, and its second page once more. A byte
// written through one mapping must be visible in the other.
func TestMappingsOfFileShareMemory(t *testing.T) {
	f := newMemory(t, 3*PageSize)
	a, err := Map(f, 0, 3*PageSize)
	check(t, err)
	b, err := Map(f, PageSize, PageSize)
	check(t, err)
	if b.Address()%PageSize != 0 {
		t.Errorf("the mapping begins at %#x, want an address aligned to PageSize", b.Address())
	}

	const index, value = 5, 42
	bytesOf(a)[PageSize+index] = value
	if got := bytesOf(b)[index]; got != value {
		t.Errorf("read %d from the other mapping, want %d", got, value)
	}

	check(t, a.Close())
	check(t, b.Close())
}

// TestCloseRestoresReservation repeatedly maps another file at the same place of a reservation.
// Each Close must leave the address range reserved, and remove the memory of the file.
func TestCloseRestoresReservation(t *testing.T) {
	const reservedBytes, offset = 8 * PageSize, 2 * PageSize
	r, err := Reserve(reservedBytes, PageSize)
	check(t, err)
	defer func() { check(t, r.Close()) }()
	for range 3 {
		m, err := r.MapAt(offset, newMemory(t, PageSize), PageSize)
		check(t, err)
		if want := r.Address() + offset; m.Address() != want {
			t.Errorf("mapped at %#x, want %#x", m.Address(), want)
		}

		if bytesOf(m)[0] != 0 {
			t.Error("the mapping shows the memory of an earlier file")
		}

		bytesOf(m)[0] = 1
		check(t, m.Close())
		if !isReserved(r, reservedBytes) {
			t.Error("Close left a hole in the reservation")
		}
	}
}

// isReserved reports whether every page of r, which has the given size, is still reserved or
// mapped. A page that can be reserved again was free, and then remains reserved.
func isReserved(r *Mapping, bytes int64) bool {
	for offset := int64(0); offset < bytes; offset += PageSize {
		if reserveAgain(unsafe.Add(r.base, offset), PageSize) {
			return false
		}
	}

	return true
}

func TestMapAtOutsideReservationFails(t *testing.T) {
	const reservedPages = 4
	r, err := Reserve(reservedPages*PageSize, PageSize)
	check(t, err)
	defer func() { check(t, r.Close()) }()
	f := newMemory(t, 2*reservedPages*PageSize)                    // large enough for each row
	for name, c := range map[string]struct{ offset, pages int64 }{ // in pages
		"before the reservation":      {offset: -1, pages: 1},
		"after the reservation":       {offset: reservedPages, pages: 1},
		"beyond the end":              {offset: reservedPages - 1, pages: 2},
		"larger than the reservation": {offset: 0, pages: reservedPages + 1},
		"no bytes":                    {offset: 0, pages: 0},
		"a negative number of bytes":  {offset: 0, pages: -1},
	} {
		m, err := r.MapAt(c.offset*PageSize, f, c.pages*PageSize)
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: MapAt = %v, %v; want EINVAL", name, m, err)
		}
	}
}

// newUnmappableFile returns a file that the kernel fails to map after it has already unmapped the
// previous contents of the range: a file of more huge pages than the system has. It skips the test
// if the system supports no huge pages.
func newUnmappableFile(t *testing.T) *os.File {
	t.Helper()
	const moreThanMemory = 1 << 45
	f, err := memfd("test", moreThanMemory, unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skipf("the system has no huge pages: %v", err)
	}

	t.Cleanup(func() { check(t, f.Close()) })
	return f
}

// TestFailedMapAtRestoresReservation checks that the address range stays reserved, and that another
// file can be mapped there.
func TestFailedMapAtRestoresReservation(t *testing.T) {
	const reservedBytes = 64 * PageSize
	f := newUnmappableFile(t)
	r, err := Reserve(reservedBytes, PageSize)
	check(t, err)
	defer func() { check(t, r.Close()) }()
	if _, err := r.MapAt(0, f, reservedBytes); err == nil {
		t.Skip("the system has this many huge pages")
	}

	if !isReserved(r, reservedBytes) {
		t.Error("the failed MapAt left a hole in the reservation")
	}

	m, err := r.MapAt(0, newMemory(t, PageSize), PageSize)
	check(t, err)
	bytesOf(m)[0] = 1
	check(t, m.Close())
}

// TestFailedHugeMappingsKeepOtherMappings requests huge pages in several goroutines, which fails if
// the system has none. This must not remove the mappings of other goroutines: a write to a removed
// mapping would end the process.
func TestFailedHugeMappingsKeepOtherMappings(t *testing.T) {
	const bytes = 3 << 20
	var goroutines sync.WaitGroup
	for range 4 {
		goroutines.Go(func() {
			for range 500 {
				if f, err := HugeMemfd("test", 64*PageSize); err == nil {
					f.Close()
				}

				if err := writeToMapping(bytes); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}

	goroutines.Wait()
}

// writeToMapping writes to each mebibyte of a new mapping, and closes it.
func writeToMapping(bytes int64) error {
	f, err := Memfd("test", bytes)
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := Map(f, 0, bytes)
	if err != nil {
		return err
	}

	for i := int64(0); i < bytes; i += 1 << 20 {
		bytesOf(m)[i] = 1
	}

	return m.Close()
}

func TestReservedAndUnmappedMemoryIsNotReadable(t *testing.T) {
	m, err := Reserve(1<<20, 4096)
	if err != nil {
		t.Fatal(err)
	}

	address := m.Address()
	if IsReadable(address) {
		t.Error("IsReadable = true for a reserved address, want false")
	}

	if err := m.Close(); err != nil {
		t.Fatal(err)
	}

	if IsReadable(address) {
		t.Error("IsReadable = true for an unmapped address, want false")
	}

	var own byte
	if !IsReadable(uintptr(unsafe.Pointer(&own))) {
		t.Error("IsReadable = false for a variable of this process, want true")
	}
}

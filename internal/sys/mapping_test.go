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

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newMemory(t *testing.T, bytes int64) *os.File {
	t.Helper()
	f, err := Memfd("test", bytes)
	check(t, err)
	t.Cleanup(func() { check(t, f.Close()) })
	return f
}

func bytesOf(m *Mapping) []byte { return unsafe.Slice((*byte)(m.Base()), m.Bytes()) }

// closeAgain returns the error of a second Close. With the tag invariants, it checks that Close
// panics, and returns ErrUnmapped.
func closeAgain(m *Mapping) (err error) {
	defer func() {
		if r := recover(); (r != nil) != invariants.Enabled {
			err = fmt.Errorf("recovered %v, want a panic only with the tag invariants", r)
		}
	}()
	err = ErrUnmapped
	if closeErr := m.Close(); !invariants.Enabled {
		err = closeErr
	}
	return err
}

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
	r, err := Reserve(1<<60, PageSize)
	if !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("got %v, want ENOMEM", err)
	}
	if err == nil {
		check(t, r.Close())
	}
}

func TestMappingsOfFileShareMemory(t *testing.T) {
	f := newMemory(t, 3*PageSize)
	a, err := Map(f, 0, 3*PageSize)
	check(t, err)
	b, err := Map(f, PageSize, PageSize)
	check(t, err)
	if b.Address()%PageSize != 0 {
		t.Errorf("the mapping begins at %#x, want an address aligned to PageSize", b.Address())
	}
	bytesOf(a)[PageSize+5] = 42
	if got := bytesOf(b)[5]; got != 42 {
		t.Errorf("read %d, want 42", got)
	}
	check(t, a.Close())
	check(t, b.Close())
}

func TestCloseRestoresReservation(t *testing.T) {
	r, err := Reserve(8*PageSize, PageSize)
	check(t, err)
	defer func() { check(t, r.Close()) }()
	for range 3 {
		m, err := r.MapAt(2*PageSize, newMemory(t, PageSize), PageSize)
		check(t, err)
		if m.Address() != r.Address()+2*PageSize {
			t.Errorf("mapped at %#x, want %#x", m.Address(), r.Address()+2*PageSize)
		}
		if bytesOf(m)[0] != 0 {
			t.Error("the mapping shows the memory of an earlier file")
		}
		bytesOf(m)[0] = 1
		check(t, m.Close())
		if !isReserved(r, 8*PageSize) {
			t.Error("Close left a hole in the reservation")
		}
	}
}

// isReserved reports whether every page of r is still reserved or mapped.
func isReserved(r *Mapping, bytes int64) bool {
	for offset := int64(0); offset < bytes; offset += PageSize {
		if reserveAgain(unsafe.Add(r.base, offset), PageSize) {
			return false
		}
	}
	return true
}

func TestMapAtOutsideReservationFails(t *testing.T) {
	r, err := Reserve(4*PageSize, PageSize)
	check(t, err)
	defer func() { check(t, r.Close()) }()
	f := newMemory(t, 8*PageSize)
	for _, c := range []struct{ offset, bytes int64 }{
		{-PageSize, PageSize},
		{4 * PageSize, PageSize},
		{3 * PageSize, 2 * PageSize},
		{0, 0},
		{0, -PageSize},
		{0, 5 * PageSize},
	} {
		if m, err := r.MapAt(c.offset, f, c.bytes); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("mapping %d bytes at offset %d: got %v, %v; want EINVAL", c.bytes, c.offset, m, err)
		}
	}
}

// newUnmappableFile returns a file that the kernel fails to map after it has unmapped the range.
func newUnmappableFile(t *testing.T) *os.File {
	t.Helper()
	f, err := memfd("test", 1<<45, unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skipf("the system has no huge pages: %v", err)
	}
	t.Cleanup(func() { check(t, f.Close()) })
	return f
}

func TestFailedMapAtRestoresReservation(t *testing.T) {
	f := newUnmappableFile(t)
	r, err := Reserve(64*PageSize, PageSize)
	check(t, err)
	defer func() { check(t, r.Close()) }()
	if _, err := r.MapAt(0, f, 64*PageSize); err == nil {
		t.Skip("the system has this many huge pages")
	}
	if !isReserved(r, 64*PageSize) {
		t.Error("the failed MapAt left a hole in the reservation")
	}
	m, err := r.MapAt(0, newMemory(t, PageSize), PageSize)
	check(t, err)
	bytesOf(m)[0] = 1
	check(t, m.Close())
}

// TestFailedHugeMappingsKeepOtherMappings requests huge pages that the system does not have. This
// must not remove mappings of other goroutines.
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
	m, err := Reserve(1<<20, 1<<12)
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

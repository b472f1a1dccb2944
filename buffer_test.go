package symmem_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"symmem"
)

// TestBufferPlacement allocates two buffers in a new pool. Their sizes are rounded up to multiples
// of 512 bytes, and the second buffer follows the first.
func TestBufferPlacement(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.alloc(p, 1000), r.alloc(p, 1)
		const wantA, wantB = 1024, 512 // rounded sizes
		if a.Size() != wantA || b.Size() != wantB {
			r.failf("got sizes %d and %d, want %d and %d", a.Size(), b.Size(), wantA, wantB)
		}

		if b.Offset() != a.Offset()+wantA {
			r.failf("got offsets %d and %d, want a distance of %d", a.Offset(), b.Offset(), wantA)
		}

		if b.Address() != a.Address()+wantA {
			r.failf("got addresses %#x and %#x, want a distance of %d", a.Address(), b.Address(), wantA)
		}

		if a.Segment() != 0 {
			r.failf("Segment() = %d, want 0", a.Segment())
		}

		if a.Pool() != p {
			r.failf("Pool() = %p, want the pool %p of the allocation", a.Pool(), p)
		}

		if m := a.Memory(); m.Address() != a.Address() || m.Bytes() != a.Size() {
			r.failf("Memory = %#x, %d bytes; want %#x, %d", m.Address(), m.Bytes(), a.Address(), a.Size())
		}
	})
}

// TestGoSliceNeedsAddressableDevice passes Go slices to a collective and to a copy. The collective
// needs a device that can address them. A copy does not.
func TestGoSliceNeedsAddressableDevice(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const count, bytes = 4, 16 // of half the slice
		whole := symmem.Host(make([]float32, 2*count))
		half, err := whole.Slice(0, bytes)
		r.ok(err)
		for _, m := range []symmem.Memory{whole, half} {
			err := r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
			if r.Device().Addressable {
				r.ok(err)
			} else {
				r.wantErr(err, symmem.ErrUnsupported)
			}
		}

		deviceMemory, err := r.alloc(r.pool(), bytes).Memory().Slice(0, bytes)
		r.ok(err)
		r.ok(r.DefaultStream().Copy(deviceMemory, half))
		r.ok(r.DefaultStream().Synchronize(r.ctx))
	})
}

// TestViewNeedsAddressableDevice accesses a buffer as a Go slice, which only some devices support.
// Device code must see what the CPU writes.
func TestViewNeedsAddressableDevice(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		b := r.alloc(r.pool(), 1000) // rounded up to 1024 bytes
		v, err := symmem.View[float64](b)
		if !r.Device().Addressable {
			r.wantErr(err, symmem.ErrUnsupported)
			return
		}

		r.ok(err)
		const wantLen, last = 1024 / 8, 1024/8 - 1
		if len(v) != wantLen {
			r.failf("the view has %d elements, want %d", len(v), wantLen)
		}

		v[last] = 5
		copied := read[float64](r, b.Memory())
		if copied[last] != 5 {
			r.failf("element %d = %v, want 5", last, copied[last])
		}
	})
}

// TestBufferMisuse frees a buffer again, also after its memory belongs to another buffer. It also
// uses the zero Buffer. No misuse may free a live buffer.
func TestBufferMisuse(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		freed := r.alloc(p, 4096)
		r.ok(freed.Free())
		r.wantErr(freed.Free(), symmem.ErrDoubleFree)
		reused := r.alloc(p, 4096) // must get the same memory, or the next call would test nothing
		if reused.Address() != freed.Address() {
			r.failf("the new buffer is at %#x, want %#x", reused.Address(), freed.Address())
		}

		if err := freed.Free(); err == nil {
			r.failf("Free of a freed buffer succeeded, want an error")
		}

		r.ok(reused.Free()) // succeeds, because the misuse has not freed it
		zero := symmem.Buffer{}
		r.wantErr(zero.Free(), symmem.ErrForeign)
		r.wantErr(zero.UseOn(r.DefaultStream()), symmem.ErrForeign)
		_, err := symmem.View[float32](zero)
		r.wantErr(err, symmem.ErrForeign)
		if zero.Size() != 0 || zero.Address() != 0 || zero.Pool() != nil {
			r.failf("got memory from the zero Buffer, want none")
		}
	})
}

// TestMemorySliceBounds slices a memory of 100 bytes. A slice inside the memory begins at the given
// offset, except that a slice of no bytes begins at the start. Any other slice is refused.
func TestMemorySliceBounds(t *testing.T) {
	m := symmem.ForeignMemory(0x1000, 100)
	const refused = -1 // in place of an offset
	for _, row := range []struct {
		name          string
		offset, bytes int64
		wantOffset    int64 // of the slice in the memory, or refused
	}{
		{"all of it", 0, 100, 0},
		{"no bytes at the end", 100, 0, 0},
		{"the last byte", 99, 1, 99},
		{"a byte past the end", 99, 2, refused},
		{"a start before the memory", -1, 1, refused},
		{"a negative length", 1, -1, refused},
		{"a length that overflows", 1, math.MaxInt64, refused},
		{"a start far past the end", math.MaxInt64, 1, refused},
	} {
		t.Run(row.name, func(t *testing.T) {
			part, err := m.Slice(row.offset, row.bytes)
			if row.wantOffset == refused {
				if !errors.Is(err, symmem.ErrOutOfRange) {
					t.Errorf("Slice(%d, %d) = %+v, %v; want ErrOutOfRange", row.offset, row.bytes, part, err)
				}

				return
			}

			wantAddress := m.Address() + uintptr(row.wantOffset)
			if err != nil || part.Bytes() != row.bytes || part.Address() != wantAddress {
				t.Errorf("Slice(%d, %d) = %+v, %v; want %d bytes at %#x", row.offset, row.bytes, part, err,
					row.bytes, wantAddress)
			}
		})
	}
}

// TestIsSymmetricAtWindowEdges asks which ranges of addresses lie in a window, the registered
// memory of a segment. Only ranges that lie entirely in one window are symmetric.
func TestIsSymmetricAtWindowEdges(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		const segmentBytes = 4 * mib // of the pool, so that each buffer fills a segment
		b := r.window(p, segmentBytes)
		unregistered := r.alloc(p, segmentBytes)
		base, size := b.Address(), b.Size()
		for _, row := range []struct {
			name    string
			address uintptr
			bytes   int64
			want    bool
		}{
			{"the whole window", base, size, true},
			{"its last byte", base + uintptr(size) - 1, 1, true},
			{"no bytes inside it", base + 8, 0, true},
			{"a byte past its end", base + uintptr(size) - 1, 2, false},
			{"its end", base + uintptr(size), 1, false},
			{"the byte before it", base - 1, 1, false},
			{"across its start", base - 1, 2, false},
			{"a length that overflows", base + 8, math.MaxInt64, false},
			{"a negative length", base, -1, false},
			{"a segment that is not registered", unregistered.Address(), 1, false},
			{"no address", 0, 1, false},
		} {
			if got := r.Interop().IsSymmetric(r.World(), row.address, row.bytes); got != row.want {
				r.failf("%s: IsSymmetric(%#x, %d) = %v, want %v", row.name, row.address, row.bytes, got,
					row.want)
			}
		}

		r.ok(p.Register(r.ctx, r.World()))
		if !r.World().IsSymmetric(unregistered.Memory()) {
			r.failf("IsSymmetric = false for the second window, want true")
		}
	})
}

// TestObserverCallOrder maps, registers and releases a segment, and checks the calls of an
// observer. A removed observer must get no calls.
func TestObserverCallOrder(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		var calls []string
		record := func(name string) { calls = append(calls, name) }
		remove := r.Interop().Observe(symmem.Observer{
			SegmentAlloc: func(symmem.SegmentEvent) { record("map") },
			SegmentFree:  func(symmem.SegmentEvent) { record("unmap") },
			Register:     func(symmem.WindowEvent) { record("register") },
			Deregister:   func(symmem.WindowEvent) { record("deregister") },
		})
		removeEmpty := r.Interop().Observe(symmem.Observer{})
		p := r.pool()
		b := r.window(p, 4096)
		r.ok(b.Free())
		r.ok(p.Trim(r.ctx, 0))
		remove()
		removeEmpty()
		remove()                       // does nothing
		unobserved := r.alloc(p, 4096) // maps a segment
		r.ok(unobserved.Free())
		want := []string{"map", "register", "deregister", "unmap"}
		if !slices.Equal(calls, want) {
			r.failf("got the calls %v, want %v", calls, want)
		}
	})
}

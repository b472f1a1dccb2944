package symmem_test

import (
	"errors"
	"testing"

	"symmem"
)

func TestBufferPlacement(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a, b := r.alloc(p, 1000), r.alloc(p, 1)
		if a.Size() != 1024 || b.Size() != 512 || b.Offset() != a.Offset()+1024 {
			r.failf("got %s and %s, want sizes 1024 and 512 at adjacent offsets", place(a), place(b))
		}
		if b.Address() != a.Address()+1024 || a.Segment() != 0 || a.Pool() != p {
			r.failf("got addresses %#x and %#x, want a distance of 1024", a.Address(), b.Address())
		}
		if m := a.Memory(); m.Address() != a.Address() || m.Bytes() != a.Size() {
			r.failf("Memory = %#x, %d bytes; want %#x, %d", m.Address(), m.Bytes(), a.Address(), a.Size())
		}
	})
}

func TestGoSliceNeedsAddressableDevice(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		whole := symmem.Host(make([]float32, 8))
		half, err := whole.Slice(0, 16)
		r.ok(err)
		for _, m := range []symmem.Memory{whole, half} {
			err := r.World().AllReduce(r.ctx, m, m, 4, symmem.Float32, symmem.Sum, nil)
			if r.Device().Addressable {
				r.ok(err)
			} else {
				r.wantErr(err, symmem.ErrUnsupported)
			}
		}
		b, err := r.alloc(r.pool(), 16).Memory().Slice(0, 16)
		r.ok(err)
		r.ok(r.DefaultStream().Copy(b, half))
		r.ok(r.DefaultStream().Synchronize(r.ctx))
	})
}

func TestViewNeedsAddressableDevice(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		a := r.alloc(r.pool(), 1000)
		v, err := symmem.View[float64](a)
		if !r.Device().Addressable {
			r.wantErr(err, symmem.ErrUnsupported)
			return
		}
		r.ok(err)
		if len(v) != 128 {
			r.failf("the view has %d elements, want 128", len(v))
		}
		v[127] = 5
		if got := read[float64](r, a.Memory()); got[127] != 5 {
			r.failf("element 127 = %v, want 5", got[127])
		}
	})
}

func TestBufferMisuse(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		freed := r.alloc(p, 4096)
		r.ok(freed.Free())
		r.wantErr(freed.Free(), symmem.ErrDoubleFree)
		reused := r.alloc(p, 4096) // the same memory
		if reused.Address() != freed.Address() {
			r.failf("the new buffer is at %#x, want %#x", reused.Address(), freed.Address())
		}
		if err := freed.Free(); err == nil {
			r.failf("Free of a freed buffer succeeded, want an error")
		}
		r.ok(reused.Free())
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

func TestMemorySliceBounds(t *testing.T) {
	m := symmem.ForeignMemory(0x1000, 100)
	for _, row := range []struct {
		name                string
		offset, bytes, want int64
		ok                  bool
	}{
		{"all of it", 0, 100, 0, true},
		{"no bytes at the end", 100, 0, 0, true},
		{"the last byte", 99, 1, 99, true},
		{"a byte past the end", 99, 2, 0, false},
		{"a start before the memory", -1, 1, 0, false},
		{"a negative length", 1, -1, 0, false},
		{"a length that overflows", 1, 1<<63 - 1, 0, false},
		{"a start far past the end", 1<<63 - 1, 1, 0, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			part, err := m.Slice(row.offset, row.bytes)
			if row.ok && (err != nil || part.Bytes() != row.bytes ||
				part.Address() != m.Address()+uintptr(row.want)) {
				t.Errorf("got %+v, %v; want %d bytes at offset %d", part, err, row.bytes, row.want)
			}
			if !row.ok && !errors.Is(err, symmem.ErrOutOfRange) {
				t.Errorf("got %+v, %v; want ErrOutOfRange", part, err)
			}
		})
	}
}

func TestIsSymmetricAtWindowEdges(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, 4*mib)
		unregistered := r.alloc(p, 4*mib)
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
			{"a length that overflows", base + 8, 1<<63 - 1, false},
			{"a negative length", base, -1, false},
			{"a segment that is not registered", unregistered.Address(), 1, false},
			{"no address", 0, 1, false},
		} {
			if got := r.Interop().IsSymmetric(r.World(), row.address, row.bytes); got != row.want {
				r.failf("%s: IsSymmetric = %v, want %v", row.name, got, row.want)
			}
		}
		r.ok(p.Register(r.ctx, r.World()))
		if !r.World().IsSymmetric(unregistered.Memory()) {
			r.failf("IsSymmetric = false for the second window, want true")
		}
	})
}

func TestObserverCallOrder(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		var events []string
		record := func(name string) { events = append(events, name) }
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
		remove() // does nothing
		r.ok(r.alloc(p, 4096).Free())
		want := []string{"map", "register", "deregister", "unmap"}
		if join(events) != join(want) {
			r.failf("got the calls %v, want %v", events, want)
		}
	})
}

package symmem_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"symmem"
)

// Pools round sizes up to multiples of 512 bytes and place buffers next to each other.
func TestBufferPlacement(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		a := r.alloc(p, 1000)
		b := r.alloc(p, 1)
		const wantSizeA = 2 * 512
		const wantSizeB = 512
		if a.Size() != wantSizeA || b.Size() != wantSizeB {
			r.failf("got sizes %d and %d, want %d and %d", a.Size(), b.Size(), wantSizeA, wantSizeB)
		}

		if b.Offset() != a.Offset()+wantSizeA {
			r.failf("got offsets %d and %d, want a distance of %d", a.Offset(), b.Offset(), wantSizeA)
		}

		if b.Address() != a.Address()+wantSizeA {
			r.failf("got addresses %#x and %#x, want a distance of %d", a.Address(), b.Address(),
				wantSizeA)
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

// A copy accepts a Go slice on every device, a collective only if the device is Addressable.
func TestGoSliceNeedsAddressableDevice(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		const count, float32Bytes = 4, 4
		const bytes = count * float32Bytes
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

		roundedUp := r.alloc(r.pool(), bytes).Memory()
		deviceMemory, err := roundedUp.Slice(0, bytes)
		r.ok(err)
		r.ok(r.DefaultStream().Copy(deviceMemory, half))
		r.ok(r.DefaultStream().Synchronize(r.ctx))
	})
}

// A View of a buffer as a Go slice works only if the CPU can address device memory.
func TestViewNeedsAddressableDevice(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		const bytes, roundedBytes = 1000, 1024
		const float64Bytes = 8
		b := r.alloc(r.pool(), bytes)
		view, err := symmem.View[float64](b)
		if !r.Device().Addressable {
			r.wantErr(err, symmem.ErrUnsupported)
			return
		}

		r.ok(err)
		const wantLen = roundedBytes / float64Bytes
		if len(view) != wantLen {
			r.failf("the view has %d elements, want %d", len(view), wantLen)
		}

		const last = wantLen - 1
		const written = 5.0
		view[last] = written
		copied := read[float64](r, b.Memory())
		if copied[last] != written {
			r.failf("element %d = %v, want %v", last, copied[last], written)
		}
	})
}

func TestBufferMisuse(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		freed := r.alloc(p, 4096)
		r.ok(freed.Free())
		r.wantErr(freed.Free(), symmem.ErrDoubleFree)
		reused := r.alloc(p, 4096)
		if reused.Address() != freed.Address() {
			r.failf("the new buffer is at %#x, want %#x", reused.Address(), freed.Address())
		}

		if err := freed.Free(); err == nil {
			r.failf("Free of a buffer whose memory is reused: got no error, want one")
		}

		r.ok(reused.Free()) // the failed Free has not freed it
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
	m := symmem.ForeignMemory(0x1000, 100) // at an arbitrary address
	for _, row := range []struct {
		name          string
		offset, bytes int64 // arguments of Slice
		wantOffset    int64
		wantErr       error
	}{
		{name: "all of it", offset: 0, bytes: 100, wantOffset: 0},
		// A slice of no bytes begins at the start of the memory.
		{name: "no bytes, at the end", offset: 100, bytes: 0, wantOffset: 0},
		{name: "the last byte", offset: 99, bytes: 1, wantOffset: 99},
		{name: "a byte past the end", offset: 99, bytes: 2, wantErr: symmem.ErrOutOfRange},
		{name: "a start before the memory", offset: -1, bytes: 1, wantErr: symmem.ErrOutOfRange},
		{name: "a negative length", offset: 1, bytes: -1, wantErr: symmem.ErrOutOfRange},
		{name: "a length that overflows", offset: 1, bytes: math.MaxInt64, wantErr: symmem.ErrOutOfRange},
		{
			name: "a start far past the end", offset: math.MaxInt64, bytes: 1,
			wantErr: symmem.ErrOutOfRange,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			part, err := m.Slice(row.offset, row.bytes)
			if row.wantErr != nil {
				if !errors.Is(err, row.wantErr) {
					t.Errorf("Slice(%d, %d) = %+v, %v; want %v", row.offset, row.bytes, part, err, row.wantErr)
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

// A range of addresses is symmetric if it lies entirely in one window. A window is a segment of a
// pool that all ranks have registered.
func TestIsSymmetricAtWindowEdges(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		const segmentBytes = 4 * mib // each buffer fills a segment
		window := r.window(p, segmentBytes)
		unregistered := r.alloc(p, segmentBytes)
		start := window.Address()
		size := window.Size()
		end := start + uintptr(size)
		inside := start + 8
		for _, row := range []struct {
			name    string
			address uintptr
			bytes   int64
			want    bool
		}{
			{name: "the whole window", address: start, bytes: size, want: true},
			{name: "the last byte of the window", address: end - 1, bytes: 1, want: true},
			{name: "no bytes in the window", address: inside, bytes: 0, want: true},
			{name: "across the end of the window", address: end - 1, bytes: 2, want: false},
			{name: "the byte after the window", address: end, bytes: 1, want: false},
			{name: "the byte before the window", address: start - 1, bytes: 1, want: false},
			{name: "across the start of the window", address: start - 1, bytes: 2, want: false},
			{name: "a length that overflows", address: inside, bytes: math.MaxInt64, want: false},
			{name: "a negative length", address: start, bytes: -1, want: false},
			{name: "an unregistered segment", address: unregistered.Address(), bytes: 1, want: false},
			{name: "no address", address: 0, bytes: 1, want: false},
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

func TestObserverCallOrder(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		var calls []string
		record := func(name string) { calls = append(calls, name) }
		remove := r.Interop().Observe(symmem.Observer{
			SegmentAlloc: func(symmem.SegmentEvent) { record("SegmentAlloc") },
			SegmentFree:  func(symmem.SegmentEvent) { record("SegmentFree") },
			Register:     func(symmem.WindowEvent) { record("Register") },
			Deregister:   func(symmem.WindowEvent) { record("Deregister") },
		})
		removeEmpty := r.Interop().Observe(symmem.Observer{})
		p := r.pool()
		b := r.window(p, 4096)
		r.ok(b.Free())
		r.ok(p.Trim(r.ctx, 0))
		remove()
		removeEmpty()
		remove() // a second call does nothing
		unobserved := r.alloc(p, 4096)
		r.ok(unobserved.Free())
		want := []string{"SegmentAlloc", "Register", "Deregister", "SegmentFree"}
		if !slices.Equal(calls, want) {
			r.failf("got the calls %v, want %v", calls, want)
		}
	})
}

package drivertest

import (
	"errors"
	"testing"

	"symmem/driver"
)

// An arena reserves a range of addresses. Arena.Map maps a segment of memory at an offset in the
// range. Offsets and sizes are multiples of the device's granularity, such as 2 MiB.

var memoryRequirements = []requirement{
	{"a new segment is zeroed, even at an offset that was used before", testZeros},
	{"a segment is mapped at its offset in the arena", testAddresses},
	{"offsets and sizes must be multiples of the granularity", testAlignment},
	{"unmapping twice returns ErrClosed", testUnmapTwice},
	{"running out of memory causes an OutOfMemoryError without side effects", testOutOfMemory},
	{"segments at random addresses are in the arena and do not overlap", testScatter},
}

func testZeros(t *testing.T, h Harness) {
	r := openRank(t, h)
	bytes := 2 * r.granularity()
	for range 3 {
		s, err := r.arena.Map(0, bytes)
		must(t, err)
		r.expectFilled(s.Address(), 0, bytes)
		must(t, r.stream.Fill(s.Address(), 0xFF, bytes))
		r.expectFilled(s.Address(), 0xFF, bytes)
		must(t, s.Unmap())
	}
}

func testAddresses(t *testing.T, h Harness) {
	r := openRank(t, h)
	granularity := r.granularity()
	sizes := []int64{granularity, 3 * granularity, 2 * granularity}
	var segments []driver.Segment
	for i, bytes := range sizes {
		offset := int64(10*i) * granularity // with gaps between the segments
		s, err := r.arena.Map(offset, bytes)
		must(t, err)
		if want := r.arena.Address() + uintptr(offset); s.Address() != want {
			t.Errorf("segment %d is at %#x, want %#x", i, s.Address(), want)
		}

		if s.Bytes() != bytes {
			t.Errorf("segment %d has %d bytes, want %d", i, s.Bytes(), bytes)
		}

		must(t, r.stream.Fill(s.Address(), byte(i+1), bytes))
		segments = append(segments, s)
	}

	for i, s := range segments {
		r.expectFilled(s.Address(), byte(i+1), sizes[i])
		must(t, s.Unmap())
	}
}

func testAlignment(t *testing.T, h Harness) {
	r := openRank(t, h)
	granularity := r.granularity()
	isPowerOfTwo := granularity > 0 && granularity&(granularity-1) == 0
	if !isPowerOfTwo {
		t.Fatalf("granularity %d is not a power of two", granularity)
	}

	expectMapError := func(offset, bytes int64) {
		s, err := r.arena.Map(offset, bytes)
		if err == nil {
			t.Errorf("mapping %d bytes at offset %d succeeded, want an error", bytes, offset)
			must(t, s.Unmap())
		}
	}
	for _, offset := range []int64{1, granularity / 2, -granularity} {
		expectMapError(offset, granularity)
	}

	for _, bytes := range []int64{0, granularity / 2, granularity + 1, -granularity} {
		expectMapError(0, bytes)
	}

	for _, bytes := range []int64{0, granularity + 1, -granularity} {
		a, err := r.device.NewArena(bytes)
		if err == nil {
			t.Errorf("NewArena(%d) succeeded, want an error", bytes)
			must(t, a.Close())
		}
	}
}

func testUnmapTwice(t *testing.T, h Harness) {
	r := openRank(t, h)
	s, err := r.arena.Map(0, r.granularity())
	must(t, err)
	must(t, s.Unmap())
	wantError(t, "unmapping again", s.Unmap(), driver.ErrClosed)
}

// excessiveBytes fits into the address space, but not into the memory of any machine.
const excessiveBytes = 32 << 40

func testOutOfMemory(t *testing.T, h Harness) {
	r := openRank(t, h)
	arena, err := r.device.NewArena(excessiveBytes)
	must(t, err)
	defer func() { must(t, arena.Close()) }()
	s, err := arena.Map(0, excessiveBytes)
	if err == nil {
		must(t, s.Unmap())
		t.Fatalf("mapping %d bytes succeeded, want an error", int64(excessiveBytes))
	}

	wantError(t, "mapping too many bytes", err, driver.ErrOutOfMemory)
	oom, ok := errors.AsType[*driver.OutOfMemoryError](err)
	if !ok || oom.Requested != excessiveBytes {
		t.Errorf("got %#v, want an OutOfMemoryError for %d bytes", err, int64(excessiveBytes))
	}

	s, err = arena.Map(0, r.granularity()) // the failed call must not occupy the addresses
	must(t, err)
	r.expectFilled(s.Address(), 0, r.granularity())
	must(t, s.Unmap())
}

// If Config.Scatter is set to a seed, Map ignores the given offset and draws a random one.
func testScatter(t *testing.T, h Harness) {
	h.require(t, Scatter)
	const seed = 4711
	w := newWorld(t, h, 2, options{scatter: seed, noGroup: true})
	w.onEachRank(func(r *rank) {
		segmentBytes := 2 * r.granularity()
		arenaBegin := r.arena.Address()
		arenaEnd := arenaBegin + uintptr(r.arenaBytes())
		for i := range 16 {
			b := r.newBuffer(segmentBytes)
			begin := b.segment.Address()
			end := begin + uintptr(segmentBytes)
			if begin < arenaBegin || end > arenaEnd {
				r.failf("segment %d is outside the arena", i)
			}

			const zeroed, used = 0, 0xEE
			r.expectFilled(begin, zeroed, segmentBytes) // not used by an earlier segment
			r.must(r.stream.Fill(begin, used, segmentBytes))
		}

		r.must(r.stream.Synchronize(w.ctx))
	})
}

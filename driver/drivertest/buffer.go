package drivertest

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"symmem/driver"
)

// buffer is a segment and, if the segment is registered, its window.
type buffer struct {
	segment driver.Segment
	window  driver.Window
}

func (b buffer) addr(offset int64) uintptr { return b.segment.Address() + uintptr(offset) }

func (r *rank) newBuffer(atLeast int64) buffer {
	g := r.granularity()
	size := (atLeast + g - 1) / g * g
	s, err := r.arena.Map(r.mapped, size)
	r.must(err)
	r.mapped += size
	r.onClose(s.Unmap)
	return buffer{segment: s}
}

func (r *rank) newWindow(atLeast int64) buffer {
	b := r.newBuffer(atLeast)
	b.window = r.register(r.group, r.nextKey(), b)
	return b
}

func (r *rank) register(c driver.Communicator, key driver.SegmentKey, b buffer) driver.Window {
	w, err := c.Register(r.world.ctx, key, b.segment)
	r.must(err)
	return w
}

// nextKey returns a new segment key. The n-th call returns the same key on every rank.
func (r *rank) nextKey() driver.SegmentKey {
	r.windows++
	return driver.SegmentKey{Pool: 7, Ordinal: r.windows}
}

func (r *rank) write(ptr uintptr, data []byte) {
	if len(data) == 0 {
		return
	}
	staging := r.stage(len(data))
	copy(staging, data)
	r.must(r.stream.Copy(ptr, address(staging), int64(len(data))))
	r.must(r.stream.Synchronize(r.world.ctx))
	runtime.KeepAlive(staging)
}

// stage returns host memory for a copy. It reuses the memory, because allocations would dominate
// the time of tests under the race detector.
func (r *rank) stage(n int) []byte {
	if len(r.staging) < n {
		r.staging = r.world.harness.Host(n)
	}
	return r.staging[:n]
}

// read copies n bytes from the device. The result is valid until the rank's next read or write.
func (r *rank) read(ptr uintptr, n int64) []byte {
	if n == 0 {
		return nil
	}
	staging := r.stage(int(n))
	r.must(r.stream.Copy(address(staging), ptr, n))
	r.must(r.stream.Synchronize(r.world.ctx))
	return staging
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func (r *rank) expect(ptr uintptr, want []byte) {
	r.world.t.Helper()
	r.must(difference(r.read(ptr, int64(len(want))), want))
}

func (r *rank) expectAll(ptr uintptr, value byte, n int64) {
	r.world.t.Helper()
	got := r.read(ptr, n)
	if n > 0 && (got[0] != value || !bytes.Equal(got[1:], got[:n-1])) {
		r.must(difference(got, bytes.Repeat([]byte{value}, int(n))))
	}
}

func difference(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of %d: got %#02x, want %#02x", i, len(want), got[i], want[i])
		}
	}
	return fmt.Errorf("got %d bytes, want %d", len(got), len(want))
}

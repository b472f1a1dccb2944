package drivertest

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"symmem/driver"
)

// buffer is a segment of one rank's device memory. Registering the segment with a group creates a
// window, through which the group's other ranks can access it.
type buffer struct {
	segment driver.Segment
	window  driver.Window // nil if not registered
}

// addressAt returns the address at a byte offset.
func (b buffer) addressAt(offset int64) uintptr { return b.segment.Address() + uintptr(offset) }

// newBuffer maps a segment of minBytes, rounded up to the granularity, until the test ends.
func (r *rank) newBuffer(minBytes int64) buffer {
	granularity := r.granularity()
	size := (minBytes + granularity - 1) / granularity * granularity
	s, err := r.arena.Map(r.nextOffset, size)
	r.must(err)
	r.nextOffset += size
	r.onClose(s.Unmap)
	return buffer{segment: s}
}

// nextKey returns an unused key. The n-th call returns the same key on every rank.
func (r *rank) nextKey() driver.SegmentKey {
	r.keyCount++
	const anyPool = 7
	return driver.SegmentKey{Pool: anyPool, Ordinal: r.keyCount}
}

// newWindow is like newBuffer, but also registers the segment with r.group. All ranks of r.group
// must call it.
func (r *rank) newWindow(minBytes int64) buffer {
	b := r.newBuffer(minBytes)
	b.window = r.register(r.group, r.nextKey(), b)
	return b
}

// register registers b's segment with c. All ranks of c must pass the same key.
func (r *rank) register(c driver.Communicator, key driver.SegmentKey, b buffer) driver.Window {
	w, err := c.Register(r.world.ctx, key, b.segment)
	r.must(err)
	return w
}

// stagingMemory returns host memory that Stream.Copy can access. It reuses the memory of earlier
// calls if this is large enough, because allocations are slow under the race detector.
func (r *rank) stagingMemory(count int) []byte {
	if len(r.staging) < count {
		r.staging = r.world.harness.Host(count)
	}

	return r.staging[:count]
}

// write copies data to device memory on r.stream and waits for the copy.
func (r *rank) write(deviceAddress uintptr, data []byte) {
	if len(data) == 0 {
		return
	}

	staging := r.stagingMemory(len(data))
	copy(staging, data)
	r.must(r.stream.Copy(deviceAddress, sliceAddress(staging), int64(len(data))))
	r.must(r.stream.Synchronize(r.world.ctx))
	runtime.KeepAlive(staging) // the stream knows only its address
}

// read returns the contents of device memory after the work on r.stream. The result is valid until
// the rank's next read or write.
func (r *rank) read(deviceAddress uintptr, count int64) []byte {
	if count == 0 {
		return nil
	}

	staging := r.stagingMemory(int(count))
	r.must(r.stream.Copy(sliceAddress(staging), deviceAddress, count))
	r.must(r.stream.Synchronize(r.world.ctx))
	return staging
}

func sliceAddress(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func (r *rank) expectBytes(deviceAddress uintptr, want []byte) {
	r.world.t.Helper()
	got := r.read(deviceAddress, int64(len(want)))
	r.must(compareBytes(got, want))
}

// expectFilled checks that count bytes of device memory all equal value.
func (r *rank) expectFilled(deviceAddress uintptr, value byte, count int64) {
	r.world.t.Helper()
	if count == 0 {
		return
	}

	got := r.read(deviceAddress, count)
	allEqualTheirNext := bytes.Equal(got[:count-1], got[1:])
	if allEqualTheirNext && got[0] == value {
		return
	}

	want := bytes.Repeat([]byte{value}, int(count))
	r.must(compareBytes(got, want))
}

// compareBytes returns an error that names the first difference, or nil.
func compareBytes(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}

	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of %d: got %#x, want %#x", i, len(want), got[i], want[i])
		}
	}

	return fmt.Errorf("got %d bytes, want %d", len(got), len(want))
}

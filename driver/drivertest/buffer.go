package drivertest

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"symmem/driver"
)

// A buffer is device memory of one rank. For example, r.newBuffer(100) maps a segment for rank r.
// If the device maps memory in units of 2 MiB, the segment has 2 MiB. r.newWindow(100) also
// registers the segment with the rank's group: all ranks call it, and can then access the segments
// of each other. The registered memory is called a window.
//
// A test copies data to and from device memory through host memory, called staging.

// buffer is a segment and its window.
type buffer struct {
	segment driver.Segment
	window  driver.Window // nil if the segment is not registered
}

// addressAt returns the address at an offset in bytes.
func (b buffer) addressAt(offset int64) uintptr { return b.segment.Address() + uintptr(offset) }

// newBuffer maps a segment of at least minBytes. It is unmapped when the test ends.
func (r *rank) newBuffer(minBytes int64) buffer {
	granularity := r.granularity() // the unit of sizes
	size := (minBytes + granularity - 1) / granularity * granularity
	s, err := r.arena.Map(r.mappedBytes, size)
	r.must(err)
	r.mappedBytes += size
	r.onClose(s.Unmap)
	return buffer{segment: s}
}

const keyPool = 7 // SegmentKey.Pool of all keys that nextKey returns; any number

// nextKey returns a new key for a window. The n-th call returns the same key on every rank.
func (r *rank) nextKey() driver.SegmentKey {
	r.keyCount++
	return driver.SegmentKey{Pool: keyPool, Ordinal: r.keyCount}
}

// newWindow is like newBuffer, but also registers the segment with r.group. All ranks must call it
// together.
func (r *rank) newWindow(minBytes int64) buffer {
	b := r.newBuffer(minBytes)
	b.window = r.register(r.group, r.nextKey(), b)
	return b
}

// register registers b's segment with group c, and returns its window. The caller can store it in
// b. The key identifies the window, and is the same on all ranks.
func (r *rank) register(c driver.Communicator, key driver.SegmentKey, b buffer) driver.Window {
	w, err := c.Register(r.world.ctx, key, b.segment)
	r.must(err)
	return w
}

// stagingBuffer returns count bytes of host memory that Stream.Copy can access. It reuses the
// memory of earlier calls, because allocations are slow under the race detector.
func (r *rank) stagingBuffer(count int) []byte {
	if len(r.staging) < count {
		r.staging = r.world.harness.Host(count)
	}

	return r.staging[:count]
}

// write copies data to device memory, after the work on r.stream. It waits for the copy.
func (r *rank) write(deviceAddress uintptr, data []byte) {
	if len(data) == 0 {
		return
	}

	staging := r.stagingBuffer(len(data))
	copy(staging, data)
	r.must(r.stream.Copy(deviceAddress, sliceAddress(staging), int64(len(data))))
	r.must(r.stream.Synchronize(r.world.ctx))
	runtime.KeepAlive(staging) // the stream knows only its address
}

// read returns a copy of device memory, made after the work on r.stream. The copy is valid until
// the rank's next read or write.
func (r *rank) read(deviceAddress uintptr, count int64) []byte {
	if count == 0 {
		return nil
	}

	staging := r.stagingBuffer(int(count))
	r.must(r.stream.Copy(sliceAddress(staging), deviceAddress, count))
	r.must(r.stream.Synchronize(r.world.ctx))
	return staging
}

func sliceAddress(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// expectBytes checks the contents of device memory.
func (r *rank) expectBytes(deviceAddress uintptr, want []byte) {
	r.world.t.Helper()
	got := r.read(deviceAddress, int64(len(want)))
	r.must(compareBytes(got, want))
}

// expectFilled checks that each of count bytes of device memory has the given value.
func (r *rank) expectFilled(deviceAddress uintptr, value byte, count int64) {
	r.world.t.Helper()
	if count == 0 {
		return
	}

	got := r.read(deviceAddress, count)
	// Compare each byte with the next one, which needs no memory for the expected contents.
	areAllEqual := bytes.Equal(got[1:], got[:count-1])
	if areAllEqual && got[0] == value {
		return
	}

	want := bytes.Repeat([]byte{value}, int(count))
	r.must(compareBytes(got, want)) // fails, and names the first difference
}

// compareBytes returns an error that names the first difference, or nil.
func compareBytes(got, want []byte) error {
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

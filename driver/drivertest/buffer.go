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

func (b buffer) addressAt(offset int64) uintptr { return b.segment.Address() + uintptr(offset) }

// newBuffer maps a segment of at least minBytes until the world is closed.
func (r *rank) newBuffer(minBytes int64) buffer {
	granularity := r.granularity()
	size := (minBytes + granularity - 1) / granularity * granularity
	s, err := r.arena.Map(r.mappedBytes, size)
	r.must(err)
	r.mappedBytes += size
	r.onClose(s.Unmap)
	return buffer{segment: s}
}

func (r *rank) newWindow(minBytes int64) buffer {
	b := r.newBuffer(minBytes)
	b.window = r.register(r.group, r.nextKey(), b)
	return b
}

func (r *rank) register(c driver.Communicator, key driver.SegmentKey, b buffer) driver.Window {
	w, err := c.Register(r.world.ctx, key, b.segment)
	r.must(err)
	return w
}

const keyPool = 7 // SegmentKey.Pool of all keys that nextKey returns

// nextKey returns a new key. The n-th call returns the same key on every rank.
func (r *rank) nextKey() driver.SegmentKey {
	r.keyCount++
	return driver.SegmentKey{Pool: keyPool, Ordinal: r.keyCount}
}

func (r *rank) write(deviceAddress uintptr, data []byte) {
	if len(data) == 0 {
		return
	}
	staging := r.stagingBuffer(len(data))
	copy(staging, data)
	r.must(r.stream.Copy(deviceAddress, sliceAddress(staging), int64(len(data))))
	r.must(r.stream.Synchronize(r.world.ctx))
	runtime.KeepAlive(staging)
}

// stagingBuffer reuses host memory, because allocations are slow under the race detector.
func (r *rank) stagingBuffer(count int) []byte {
	if len(r.staging) < count {
		r.staging = r.world.harness.Host(count)
	}
	return r.staging[:count]
}

// read returns a copy of device memory. It is valid until the rank's next read or write.
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

func (r *rank) expectBytes(deviceAddress uintptr, want []byte) {
	r.world.t.Helper()
	r.must(compareBytes(r.read(deviceAddress, int64(len(want))), want))
}

func (r *rank) expectFilled(deviceAddress uintptr, value byte, count int64) {
	r.world.t.Helper()
	got := r.read(deviceAddress, count)
	if count > 0 && (got[0] != value || !bytes.Equal(got[1:], got[:count-1])) {
		r.must(compareBytes(got, bytes.Repeat([]byte{value}, int(count))))
	}
}

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

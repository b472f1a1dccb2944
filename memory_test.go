package symmem_test

import (
	"slices"
	"unsafe"

	"symmem"
)

// Tests read and write device memory by copies of Go slices, as programs do that run on every
// backend. View is for backends whose memory the processor can address.

// write copies elements into memory, behind the work of the default stream, and waits for that.
func write[T symmem.Element](r *rank, m symmem.Memory, v []T) {
	r.t.Helper()
	r.ok(r.DefaultStream().Copy(m, symmem.Host(v)))
	r.synchronize()
}

// read copies memory out, behind the work of the default stream, and waits for that.
func read[T symmem.Element](r *rank, m symmem.Memory) []T {
	r.t.Helper()
	var zero T
	v := make([]T, m.Bytes()/int64(unsafe.Sizeof(zero)))
	r.ok(r.DefaultStream().Copy(symmem.Host(v), m))
	r.synchronize()
	return v
}

// plain is memory that no group registers: its collectives take the plain path.
func (r *rank) plain(bytes int64) symmem.Memory {
	r.t.Helper()
	m, err := r.alloc(r.poolWith(symmem.PoolOptions{FirstSegment: 2 * mib}), bytes).Memory().
		Slice(0, bytes)
	r.ok(err)
	return m
}

func (r *rank) floats(b symmem.Buffer) []float32 {
	r.t.Helper()
	return read[float32](r, b.Memory())
}

// fill sets every element of a buffer.
func (r *rank) fill(b symmem.Buffer, value float32) {
	r.t.Helper()
	write(r, b.Memory(), slices.Repeat([]float32{value}, int(b.Size()/4)))
}

// holds ends the rank unless every element of a buffer is the given value.
func (r *rank) holds(b symmem.Buffer, want float32) {
	r.t.Helper()
	for i, got := range r.floats(b) {
		if got != want {
			r.failf("element %d is %v, want %v", i, got, want)
		}
	}
}

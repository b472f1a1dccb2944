package symmem

import (
	"fmt"
	"unsafe"

	"symmem/internal/alloc"
)

// Buffer is a block of a pool. It is a value: copies name the same block. The zero Buffer is no
// buffer.
type Buffer struct {
	pool    *Pool
	block   alloc.Block
	address uintptr
	stream  alloc.Stream
}

// Address is where the buffer lies on this rank.
func (b Buffer) Address() uintptr { return b.address }

// Size is the number of bytes that the buffer covers: what was asked for, rounded up.
func (b Buffer) Size() int64 { return b.block.Size }

// Segment is the ordinal of the buffer's segment, the same on every rank of the pool's domain.
func (b Buffer) Segment() int { return int(b.block.Segment) }

// Offset is the buffer's place in its segment in bytes, the same on every rank of the domain.
func (b Buffer) Offset() int64 { return b.block.Offset }

// Pool is where the buffer comes from.
func (b Buffer) Pool() *Pool { return b.pool }

// Memory is the whole buffer as an argument of collectives and copies.
func (b Buffer) Memory() Memory {
	return Memory{buffer: b, address: b.address, bytes: b.block.Size}
}

// Free gives the buffer back to its pool. Work that was queued on the buffer's own stream is no
// hindrance, since only that stream gets the memory next; see UseOn for other streams. It returns
// ErrDoubleFree for a buffer that was freed before.
func (b Buffer) Free() error {
	if b.pool == nil {
		return fmt.Errorf("freeing the zero buffer: %w", ErrForeign)
	}
	return b.pool.free(b)
}

// UseOn notes that another stream uses the buffer: after Free the memory is kept until that use is
// done. Collectives, Copy and Fill note it by themselves.
func (b Buffer) UseOn(s *Stream) error {
	if b.pool == nil {
		return fmt.Errorf("using the zero buffer: %w", ErrForeign)
	}
	return b.pool.use(b, s)
}

// Memory is a range of memory that work reads or writes: a part of a Buffer, or memory that is not
// symmem's.
type Memory struct {
	buffer  Buffer
	address uintptr
	bytes   int64
	keep    any
}

// Foreign is memory that symmem did not hand out, by its device address. The caller keeps it alive
// until the work is done.
func Foreign(address uintptr, bytes int64) Memory { return Memory{address: address, bytes: bytes} }

// Host is the memory of a Go slice, on backends whose device is the processor. The slice is kept
// reachable while work on it is queued.
func Host[T Element](s []T) Memory {
	var zero T
	bytes := int64(len(s)) * int64(unsafe.Sizeof(zero))
	return Memory{address: uintptr(unsafe.Pointer(unsafe.SliceData(s))), bytes: bytes, keep: s}
}

// Slice is the part [from, from+bytes) of the memory. A range that is not inside is ErrOutOfRange.
func (m Memory) Slice(from, bytes int64) (Memory, error) {
	if from < 0 || bytes < 0 || from > m.bytes || bytes > m.bytes-from {
		return Memory{}, fmt.Errorf("slicing [%d, %d+%d) of %d bytes: %w",
			from, from, bytes, m.bytes, ErrOutOfRange)
	}
	m.address += uintptr(from)
	m.bytes = bytes
	return m, nil
}

// Address is the first address.
func (m Memory) Address() uintptr { return m.address }

// Bytes is the length in bytes.
func (m Memory) Bytes() int64 { return m.bytes }

// Element is what elements of memory can be in Go. Float16 and BFloat16 elements are uint16 there.
type Element interface {
	~float32 | ~float64 | ~int8 | ~uint8 | ~uint16 | ~int32 | ~int64
}

// View is a buffer's memory as a Go slice, on backends whose memory the processor can address;
// else ErrUnsupported. The slice is valid until the buffer is freed; work that is queued on the
// memory must be synchronized first.
func View[T Element](b Buffer) ([]T, error) {
	if b.pool == nil {
		return nil, fmt.Errorf("viewing the zero buffer: %w", ErrForeign)
	}
	if !b.pool.rt.device.Info().Addressable {
		return nil, fmt.Errorf("viewing device memory: %w", ErrUnsupported)
	}
	var zero T
	first := *(*unsafe.Pointer)(unsafe.Pointer(&b.address))
	return unsafe.Slice((*T)(first), b.block.Size/int64(unsafe.Sizeof(zero))), nil
}

package symmem

import (
	"cmp"
	"fmt"
	"unsafe"

	"symmem/internal/alloc"
)

// Suppose that a program allocates 4096 bytes on stream 3 of a pool. It gets a Buffer, which refers
// to a block of the pool. The buffer's Memory is the range of all 4096 bytes. Slice returns a part
// of this range, such as the 512 bytes from offset 1024 on. A Memory can also be a Go slice, or
// memory of another library.
//
// The pool records which streams use a buffer, except its own stream 3. After Free, the memory is
// not reused until these uses have ended.

// Buffer refers to a block of memory from Pool.Alloc. The zero Buffer refers to no memory. After
// Free, a copy of the Buffer may refer to memory that belongs to another Buffer.
type Buffer struct{ memory Memory }

// Memory is a range of memory: part of a Buffer, or memory that symmem does not own.
type Memory struct { // four words, the most that the compiler keeps in registers
	pool   *Pool          // nil for memory that symmem does not own
	handle alloc.Handle   // identifies the block of the Buffer; zero without a pool
	start  unsafe.Pointer // keeps a Go slice reachable
	extent extent         // the length and other properties, in one word
}

// extent packs three values into 64 bits. The highest bit is set for the memory of a Go slice. The
// next 47 bits are the length in bytes. The lowest 16 bits are the number of the Buffer's stream.
type extent uint64

const (
	streamNumberBits = 16
	maxExtentBytes   = 1<<(63-streamNumberBits) - 1 // largest length
	hostFlag         = extent(1 << 63)              // set for the memory of a Go slice

	// maxStreams is the largest number of streams. They have the numbers below it.
	maxStreams = 1<<streamNumberBits - 1
	// untracked, a number that no stream has, marks memory whose uses the pool does not record.
	untracked alloc.Stream = maxStreams
)

// newExtent returns an extent without hostFlag. bytes must be from 0 to maxExtentBytes.
func newExtent(bytes int64, stream alloc.Stream) extent {
	return extent(bytes)<<streamNumberBits | extent(stream)
}

func (e extent) bytes() int64 {
	withoutFlag := e &^ hostFlag
	return int64(withoutFlag >> streamNumberBits)
}

func (e extent) stream() alloc.Stream {
	const streamMask = 1<<streamNumberBits - 1
	return alloc.Stream(e & streamMask)
}

// isOnOtherStream reports whether the pool must record a use of the memory on the current stream.
func (e extent) isOnOtherStream(current alloc.Stream) bool {
	stream := e.stream()
	return stream != current && stream != untracked
}

// Address returns the buffer's address on this rank. Other ranks may have it at other addresses.
func (b Buffer) Address() uintptr { return uintptr(b.memory.start) }

// Size returns the size in bytes, which may be slightly more than requested.
func (b Buffer) Size() int64 { return b.memory.extent.bytes() }

// Segment returns the number of the buffer's segment (a part of the pool that was mapped at once),
// or -1 after Free. Segment and Offset are the same on every rank of the pool's domain.
func (b Buffer) Segment() int {
	segment, _ := b.segmentAndOffset()
	return segment
}

// Offset returns the offset in the segment, in bytes.
func (b Buffer) Offset() int64 {
	_, offset := b.segmentAndOffset()
	return offset
}

// segmentAndOffset returns -1 and 0 for the zero Buffer, and after Free.
func (b Buffer) segmentAndOffset() (segment int, offset int64) {
	if b.memory.pool == nil {
		return -1, 0
	}

	block, err := b.memory.pool.blockOf(b.memory)
	if err != nil {
		return -1, 0
	}

	return int(block.Segment), block.Offset
}

// Pool returns the buffer's pool.
func (b Buffer) Pool() *Pool { return b.memory.pool }

// Memory returns the whole buffer.
func (b Buffer) Memory() Memory { return b.memory }

// Free gives the buffer back to its pool. A second Free returns ErrDoubleFree. Work that is queued
// on the buffer's own stream may still use the buffer. For work on other streams, see UseOn.
//
// After Pool.Close, no queued work may use a freed buffer: Free unmaps a segment (a part of the
// pool that was mapped at once) when its last buffer is freed.
func (b Buffer) Free() error {
	return b.memory.pool.free(b) // returns an error if the pool is nil
}

// UseOn records that a stream uses the buffer. After Free, the pool reuses the memory only when the
// use has completed or, during a capture, when the graph is closed. Collectives, Copy and Fill
// record their uses, so that they need no UseOn.
//
// All ranks of the pool's domain must record the same uses, and must synchronize the stream or
// close the graph at the same points of the program, because later placements depend on both.
func (b Buffer) UseOn(s *Stream) error {
	if b.memory.pool == nil {
		return fmt.Errorf("using the zero buffer: %w", ErrForeign)
	}

	if s == nil || s.rt != b.memory.pool.rt {
		return invalid("using a buffer on a nil stream or a stream of another runtime")
	}

	use, err := enterPools(b.memory.pool, nil)
	if err != nil {
		return fmt.Errorf("using a buffer on stream %d: %w", s.number, err)
	}
	defer use.leave(b.memory.pool, nil)
	return s.use(b.memory)
}

// Host returns the memory of a Go slice. The slice stays reachable while queued work uses it.
// Collectives accept the memory of a slice only if the device is the CPU.
func Host[T Element](s []T) Memory {
	var zero T
	bytes := int64(len(s)) * int64(unsafe.Sizeof(zero))
	const anyStream = 0 // without a pool, no uses are recorded
	return Memory{
		start: unsafe.Pointer(unsafe.SliceData(s)), extent: newExtent(bytes, anyStream) | hostFlag,
	}
}

// Slice returns the range [offset, offset+bytes) of the memory, or ErrOutOfRange.
func (m Memory) Slice(offset, bytes int64) (Memory, error) {
	isInRange := offset >= 0 && offset <= m.Bytes() &&
		bytes >= 0 && bytes <= m.Bytes()-offset // offset+bytes could overflow
	if !isInRange {
		return Memory{}, fmt.Errorf("slicing [%d, %d+%d) of %d bytes: %w",
			offset, offset, bytes, m.Bytes(), ErrOutOfRange)
	}

	// An empty range keeps its start. At the end of a Go slice, the new start would otherwise lie
	// past the slice, and the garbage collector would reject it.
	if bytes > 0 {
		m.start = unsafe.Add(m.start, offset)
	}

	flag := m.extent & hostFlag
	m.extent = newExtent(bytes, m.extent.stream()) | flag
	return m, nil
}

// Address returns the address of the first byte.
func (m Memory) Address() uintptr { return uintptr(m.start) }

// isTracked reports whether a pool records the uses of the memory.
func (m Memory) isTracked() bool { return m.pool != nil && m.extent.stream() != untracked }

// Pool returns the memory's pool, or nil.
func (m Memory) Pool() *Pool { return m.pool }

// Bytes returns the length in bytes.
func (m Memory) Bytes() int64 { return m.extent.bytes() }

// Element lists the Go types of elements. A uint16 can also be a Float16 or a BFloat16.
type Element interface {
	~float32 | ~float64 | ~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64
}

// View returns a buffer's memory as a Go slice, or ErrUnsupported if the CPU cannot address it. The
// slice is valid until Free or Suspend. View does not wait for queued work.
func View[T Element](b Buffer) ([]T, error) {
	if b.memory.pool == nil {
		return nil, fmt.Errorf("viewing the zero buffer: %w", ErrForeign)
	}

	_, blockErr := b.memory.pool.blockOf(b.memory) // for example, the buffer has been freed
	if err := cmp.Or(blockErr, b.memory.pool.checkOpen()); err != nil {
		return nil, fmt.Errorf("viewing a buffer: %w", err)
	}

	isAddressable := b.memory.pool.rt.device.Info().Addressable
	if !isAddressable {
		return nil, fmt.Errorf("viewing device memory: %w", ErrUnsupported)
	}

	var zero T
	count := b.Size() / int64(unsafe.Sizeof(zero))
	return unsafe.Slice((*T)(b.memory.start), count), nil
}

package symmem

import (
	"fmt"
	"unsafe"

	"symmem/internal/alloc"
)

// Buffer refers to a block of memory from Pool.Alloc. The zero Buffer refers to no memory. After
// Free, the pool reuses the memory, so all copies of the Buffer become invalid.
type Buffer struct{ memory Memory }

// Memory is a byte range of a Buffer, of a Go slice or of another library's memory.
type Memory struct { // four words, the most that the compiler keeps in registers
	pool   *Pool          // nil for memory that symmem does not own
	handle alloc.Handle   // identifies the block; zero if pool is nil
	start  unsafe.Pointer // keeps a Go slice reachable
	extent extent
}

// extent packs three fields: hostFlag in the top bit, a length in bytes, and in the low bits the
// number of the stream on which the Buffer was allocated.
type extent uint64

const (
	hostFlag         = extent(1 << 63) // set for Go slices
	lengthBits       = 47
	streamNumberBits = 16

	maxExtentBytes = 1<<lengthBits - 1
	streamMask     = 1<<streamNumberBits - 1

	maxStreams = streamMask // stream numbers are less than maxStreams
	// untracked replaces the stream's number if the pool does not record uses of the memory.
	untracked alloc.Stream = maxStreams
)

// newExtent returns an extent without hostFlag. bytes must be in [0, maxExtentBytes].
func newExtent(bytes int64, stream alloc.Stream) extent {
	return extent(bytes)<<streamNumberBits | extent(stream)
}

func (e extent) bytes() int64 {
	withoutFlag := e &^ hostFlag
	return int64(withoutFlag >> streamNumberBits)
}

func (e extent) stream() alloc.Stream {
	return alloc.Stream(e & streamMask)
}

// isOnOtherStream reports whether the pool must record a use of the memory by the current stream.
func (e extent) isOnOtherStream(current alloc.Stream) bool {
	stream := e.stream()
	return stream != current && stream != untracked
}

// Address returns the buffer's address on this rank. It may differ between ranks.
func (b Buffer) Address() uintptr { return uintptr(b.memory.start) }

// Size returns the size in bytes, which may be slightly more than requested.
func (b Buffer) Size() int64 { return b.memory.extent.bytes() }

// Segment returns the number of the mapped part of the pool that contains the buffer, or -1 after
// Free. Segment and Offset are the same on all ranks that share the pool.
func (b Buffer) Segment() int {
	segment, _ := b.segmentAndOffset()
	return segment
}

// Offset returns the buffer's offset in its segment, in bytes.
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

// Free returns the buffer to its pool. A second Free returns ErrDoubleFree. Work already queued on
// the stream of the allocation may still use the buffer. For work on other streams, see UseOn.
//
// After Pool.Close, freeing the last buffer of a segment unmaps the segment. Therefore, all work
// that uses a buffer must be complete before Free.
func (b Buffer) Free() error {
	return b.memory.pool.free(b) // free accepts a nil pool
}

// UseOn declares that work on s uses the buffer. After Free, the pool reuses the memory only when
// the work queued on s before Free is complete. If the work was captured, the pool waits until the
// graph is closed. Collectives, Copy and Fill need no UseOn.
//
// All ranks that share the pool must make the same UseOn calls, and must synchronize s and close
// graphs at the same points of the program. Otherwise, later buffers get different offsets.
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
// Collectives accept it only if the device is the CPU.
func Host[T Element](s []T) Memory {
	var zero T
	bytes := int64(len(s)) * int64(unsafe.Sizeof(zero))
	const noStream = 0 // ignored for memory without a pool
	return Memory{
		start: unsafe.Pointer(unsafe.SliceData(s)), extent: newExtent(bytes, noStream) | hostFlag,
	}
}

// Slice returns the range [offset, offset+bytes) of the memory, or ErrOutOfRange.
func (m Memory) Slice(offset, bytes int64) (Memory, error) {
	isStartValid := offset >= 0 && offset <= m.Bytes()
	isLengthValid := bytes >= 0 && bytes <= m.Bytes()-offset // offset+bytes could overflow
	if !isStartValid || !isLengthValid {
		return Memory{}, fmt.Errorf("slicing [%d, %d+%d) of %d bytes: %w",
			offset, offset, bytes, m.Bytes(), ErrOutOfRange)
	}

	if bytes > 0 { // the start of an empty range could lie past the end of a Go slice
		m.start = unsafe.Add(m.start, offset)
	}

	flag := m.extent & hostFlag
	m.extent = newExtent(bytes, m.extent.stream()) | flag
	return m, nil
}

// Address returns the address of the first byte.
func (m Memory) Address() uintptr { return uintptr(m.start) }

// isTracked reports whether the pool records uses of the memory.
func (m Memory) isTracked() bool { return m.pool != nil && m.extent.stream() != untracked }

// Pool returns the memory's pool, or nil.
func (m Memory) Pool() *Pool { return m.pool }

// Bytes returns the length in bytes.
func (m Memory) Bytes() int64 { return m.extent.bytes() }

// Element permits the Go types of elements. A uint16 can also hold a Float16 or a BFloat16.
type Element interface {
	~float32 | ~float64 | ~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64
}

// View returns a buffer's memory as a Go slice, or ErrUnsupported if the CPU cannot address it. The
// slice is valid until Free or Suspend. View does not wait for queued work.
func View[T Element](b Buffer) ([]T, error) {
	pool := b.memory.pool
	if pool == nil {
		return nil, fmt.Errorf("viewing the zero buffer: %w", ErrForeign)
	}

	if _, err := pool.blockOf(b.memory); err != nil {
		return nil, fmt.Errorf("viewing a buffer: %w", err)
	}

	if err := pool.checkOpen(); err != nil {
		return nil, fmt.Errorf("viewing a buffer: %w", err)
	}

	isAddressable := pool.rt.device.Info().Addressable
	if !isAddressable {
		return nil, fmt.Errorf("viewing device memory: %w", ErrUnsupported)
	}

	var zero T
	count := b.Size() / int64(unsafe.Sizeof(zero))
	return unsafe.Slice((*T)(b.memory.start), count), nil
}

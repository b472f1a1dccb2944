package symmem

import (
	"fmt"
	"unsafe"

	"symmem/internal/alloc"
)

// Buffer is a block of a pool. It is a value: copies name the same block. The zero Buffer is no
// buffer.
type Buffer struct{ memory Memory }

// Memory is a range of memory that work reads or writes: a part of a Buffer, or memory that is not
// symmem's. It has four words, the most that the compiler keeps in registers, since every
// allocation and every collective passes some.
type Memory struct {
	pool   *Pool        // nil for memory that is not symmem's
	handle alloc.Handle // of the buffer's block
	// start keeps a Go slice reachable; device memory is none of the garbage collector's.
	start  unsafe.Pointer
	extent extent
}

// extent packs a length in bytes, whether the memory is a Go slice and, for a Buffer's memory, the
// number of its stream, or untracked.
type extent uint64

const (
	streamBits = 16
	maxStreams = 1<<streamBits - 1
	maxExtent  = 1<<(63-streamBits) - 1
	// untracked, in place of a stream, marks memory that its user keeps alive: uses on streams and in
	// captures are not noted.
	untracked alloc.Stream = maxStreams
	// ofHost marks the memory of a Go slice.
	ofHost extent = 1 << 63
)

func newExtent(bytes int64, stream alloc.Stream) extent {
	return extent(bytes)<<streamBits | extent(stream)
}

func (e extent) bytes() int64         { return int64(e &^ ofHost >> streamBits) }
func (e extent) stream() alloc.Stream { return alloc.Stream(e & (1<<streamBits - 1)) }

// isOther reports whether the memory is that of a buffer of another stream than the given one.
func (e extent) isOther(than alloc.Stream) bool {
	stream := e.stream()
	return stream != than && stream != untracked
}

// Address is where the buffer lies on this rank.
func (b Buffer) Address() uintptr { return uintptr(b.memory.start) }

// Size is the number of bytes that the buffer covers: what was asked for, rounded up.
func (b Buffer) Size() int64 { return b.memory.extent.bytes() }

// Segment is the ordinal of the buffer's segment, the same on every rank of the pool's domain. It
// is -1 for a buffer that was freed.
func (b Buffer) Segment() int {
	segment, _ := b.location()
	return segment
}

// Offset is the buffer's place in its segment in bytes, the same on every rank of the domain.
func (b Buffer) Offset() int64 {
	_, offset := b.location()
	return offset
}

func (b Buffer) location() (segment int, offset int64) {
	if b.memory.pool == nil {
		return -1, 0
	}
	block, err := b.memory.pool.blockOf(b.memory)
	if err != nil {
		return -1, 0
	}
	return int(block.Segment), block.Offset
}

// Pool is where the buffer comes from.
func (b Buffer) Pool() *Pool { return b.memory.pool }

// Memory returns the whole buffer as an argument of collectives and copies.
func (b Buffer) Memory() Memory { return b.memory }

// Free gives the buffer back to its pool. Work on the buffer's own stream may still be pending:
// only that stream gets the memory next; see UseOn for other streams. It returns ErrDoubleFree for
// a buffer that was freed before. After Pool.Close it unmaps the segment of which this was the last
// buffer; no buffer of that segment may be in use then.
func (b Buffer) Free() error {
	return b.memory.pool.free(b)
}

// UseOn notes that another stream uses the buffer: after Free the memory is kept until that use is
// done. While the stream captures, the memory is kept until the graph is closed instead.
// Collectives, Copy and Fill call UseOn implicitly, on the ranks that call them.
//
// The time at which memory comes back decides where later buffers lie, so all ranks of the pool's
// domain must record the same uses. If only some of them use a buffer on another stream or in a
// capture, as in a message or a collective of a smaller group, the others call UseOn for it, and
// synchronize their stream or close their graph at the same points.
func (b Buffer) UseOn(s *Stream) error {
	if b.memory.pool == nil {
		return fmt.Errorf("using the zero buffer: %w", ErrForeign)
	}
	if s == nil || s.rt != b.memory.pool.rt {
		return invalid("using a buffer on no stream, or on one of another runtime")
	}
	in, err := enter(b.memory.pool, nil)
	if err != nil {
		return fmt.Errorf("using a buffer on stream %d: %w", s.number, err)
	}
	defer in.leave(b.memory.pool, nil)
	return s.use(b.memory)
}

// Host returns the memory of a Go slice. It can be copied from and to and, on backends whose device
// is the processor, passed to collectives. The slice stays reachable while work on it is queued.
func Host[T Element](s []T) Memory {
	var zero T
	bytes := int64(len(s)) * int64(unsafe.Sizeof(zero))
	return Memory{
		start: unsafe.Pointer(unsafe.SliceData(s)), extent: newExtent(bytes, 0) | ofHost,
	}
}

// Slice returns the part [from, from+bytes) of the memory, or ErrOutOfRange. An empty part has the
// address of the whole.
func (m Memory) Slice(from, bytes int64) (Memory, error) {
	if from < 0 || bytes < 0 || from > m.Bytes() || bytes > m.Bytes()-from {
		return Memory{}, fmt.Errorf("slicing [%d, %d+%d) of %d bytes: %w",
			from, from, bytes, m.Bytes(), ErrOutOfRange)
	}
	if bytes > 0 {
		// A pointer past the end of a Go slice may point at memory that is not in use, which the
		// garbage collector takes for corruption.
		m.start = unsafe.Add(m.start, from)
	}
	m.extent = newExtent(bytes, m.extent.stream()) | m.extent&ofHost
	return m, nil
}

// Address returns the first address.
func (m Memory) Address() uintptr { return uintptr(m.start) }

// tracked reports whether the pool notes which streams and captures use the memory.
func (m Memory) tracked() bool { return m.pool != nil && m.extent.stream() != untracked }

// Pool returns the pool of the buffer that the memory is part of, or nil.
func (m Memory) Pool() *Pool { return m.pool }

// Bytes returns the length in bytes.
func (m Memory) Bytes() int64 { return m.extent.bytes() }

// Element lists the Go types of elements. Float16 and BFloat16 elements are uint16.
type Element interface {
	~float32 | ~float64 | ~int8 | ~uint8 | ~uint16 | ~int32 | ~int64
}

// View returns a buffer's memory as a Go slice, or ErrUnsupported on backends whose memory the
// processor cannot address. The slice is valid until the buffer is freed; work that is queued on
// the memory must be synchronized first.
func View[T Element](b Buffer) ([]T, error) {
	if b.memory.pool == nil {
		return nil, fmt.Errorf("viewing the zero buffer: %w", ErrForeign)
	}
	if _, err := b.memory.pool.blockOf(b.memory); err != nil {
		return nil, fmt.Errorf("viewing a buffer: %w", err)
	}
	if !b.memory.pool.rt.device.Info().Addressable {
		return nil, fmt.Errorf("viewing device memory: %w", ErrUnsupported)
	}
	var zero T
	return unsafe.Slice((*T)(b.memory.start), b.Size()/int64(unsafe.Sizeof(zero))), nil
}

package symmem

import (
	"fmt"
	"unsafe"

	"symmem/internal/alloc"
)

// Memory is a byte range of a Buffer, of a Go slice or of another library's memory.
type Memory struct { // four words, so that calls pass it in registers
	pool   *Pool          // nil for memory that symmem does not own
	handle alloc.Handle   // identifies the block; zero if pool is nil
	start  unsafe.Pointer // first byte
	extent extent
}

// extent packs, from the highest bit to the lowest, hostFlag, a length in bytes, and the number of
// the stream on which the Buffer was allocated.
type extent uint64

const (
	hostFlag         = extent(1 << 63) // set for Go slices
	lengthBits       = 47
	streamNumberBits = 16

	maxExtentBytes = 1<<lengthBits - 1
	streamMask     = 1<<streamNumberBits - 1

	// untracked replaces the stream number if the pool does not record uses of the memory.
	untracked  alloc.Stream = streamMask
	maxStreams              = streamMask // from 0 to untracked-1
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

// needsRecordedUse reports whether the pool must record uses of the memory by a stream.
func (e extent) needsRecordedUse(stream alloc.Stream) bool {
	allocatedOn := e.stream()
	return allocatedOn != stream && allocatedOn != untracked
}

// Host returns the memory of a Go slice. The slice stays reachable while queued work uses it.
// Collectives accept such memory only if the device is the CPU.
func Host[T Element](s []T) Memory {
	var zero T
	bytes := int64(len(s)) * int64(unsafe.Sizeof(zero))
	const anyStream = 0 // ignored for memory without a pool
	return Memory{
		start: unsafe.Pointer(unsafe.SliceData(s)), extent: newExtent(bytes, anyStream) | hostFlag,
	}
}

// Slice returns the range [offset, offset+bytes) of the memory, or ErrOutOfRange.
func (m Memory) Slice(offset, bytes int64) (Memory, error) {
	bytesToEnd := m.Bytes() - offset
	isStartValid := offset >= 0 && bytesToEnd >= 0
	isLengthValid := bytes >= 0 && bytes <= bytesToEnd
	if !isStartValid || !isLengthValid {
		return Memory{}, fmt.Errorf("slicing [%d, %d+%d) of %d bytes: %w",
			offset, offset, bytes, m.Bytes(), ErrOutOfRange)
	}

	if bytes > 0 { // an empty range could begin after the end of a Go slice
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

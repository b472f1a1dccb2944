package host

import (
	"unsafe"

	"symmem/internal/control/shm"
	"symmem/internal/reduce"
)

// A group's shared memory holds two staging buffers for each rank, which only that rank writes, and
// a pipe for each pair of ranks.
const (
	// lineStride is the distance between lines that different ranks write. It spans two cache
	// lines, because CPUs fetch lines in pairs.
	lineStride = 128
	maxRanks   = shm.MaxRanks
	// stageBytes is large enough to amortize the cost of a step, and small enough for the
	// second-level cache.
	stageBytes   = 512 << 10
	stagingBytes = 2 * stageBytes // the two staging buffers of a rank
)

// A single reduction must be able to read the buffers of all ranks of a group.
var _ [reduce.MaxSources - maxRanks]struct{}

// sharedPipe is the pipe from one rank to another. The receiver writes only the field read.
type sharedPipe struct {
	sendCount uint64
	_         [lineStride - 8]byte
	read      uint64 // number of the last frame that the receiver has read
	_         [lineStride - 8]byte
	frames    [pipeFrames]frame
}

// frame is a part of a message. Frame number n, from 1, has the index n % pipeFrames.
type frame struct {
	// The sender writes posted, the frame's number, after the other fields.
	posted uint64
	header frameHeader
	_      [lineStride/2 - 8 - frameHeaderBytes]byte
	data   [frameBytes]byte
	_      [lineStride / 2]byte
}

type frameHeader struct {
	tag, number, total uint64
	offset             uint64 // of the frame's data in the message, in bytes
	digest             uint64 // covers the arguments of the Send
	priorCollectives   uint64 // collectives that the sender called before
	dataType           uint64
}

const (
	// With many frames, the sender and the receiver rarely wait for each other.
	pipeFrames = 16
	// All frames of a pipe fit into the second-level cache.
	frameBytes       = 32 << 10
	frameHeaderBytes = 7 * 8
)

func dataBytes(ranks int) int64 {
	return int64(ranks)*stagingBytes + int64(ranks*ranks)*int64(unsafe.Sizeof(sharedPipe{}))
}

// pointer converts a device address to a pointer. The memory must be outside the Go heap, or
// Call.Keep must keep it reachable.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

package host

import (
	"unsafe"

	"symmem/internal/control/shm"
	"symmem/internal/reduce"
)

// A group's data follows its control region in shared memory. It consists of two staging buffers
// for each rank, which only that rank writes, and a pipe for each pair of ranks. The system
// allocates pages when they are first touched.
const (
	// lineStride is the distance between lines that different ranks write. It spans two cache
	// lines, because processors fetch lines in pairs.
	lineStride = 128
	// maxRanks is the maximum size of a group.
	maxRanks = shm.MaxRanks
	// stageBytes is the size of each of a rank's two staging buffers. It is large enough to
	// amortize the cost of a step, and small enough for the buffers to stay in the second-level
	// cache.
	stageBytes = 512 << 10
)

// A single reduction must be able to read the buffers of all ranks of a group.
var _ [reduce.MaxSources - maxRanks]struct{}

// pair is the pipe from one rank to another. The receiver writes only the field read, and the
// sender writes all other fields.
type pair struct {
	// posted counts the calls to Send.
	posted uint64
	_      [lineStride - 8]byte
	// read is the number of the last frame that the receiver has read.
	read   uint64
	_      [lineStride - 8]byte
	frames [pairFrames]frame
}

// frame is a part of a message. Frame number n of a pipe has the index n % pairFrames.
type frame struct {
	// posted is the frame's number, from 1. The sender writes it after the other fields.
	posted uint64
	header frameHeader
	_      [lineStride/2 - 8 - frameHeaderBytes]byte
	data   [frameBytes]byte
	_      [lineStride / 2]byte
}

// frameHeader identifies a frame's message and the position of the frame's data in it.
type frameHeader struct {
	// tag and number identify the message within the pair, and total is its size in bytes.
	tag, number, total uint64
	// offset is the position of the frame's data in the message, in bytes.
	offset uint64
	// digest identifies the arguments of the Send. after is the number of collectives that the
	// sender called before the Send.
	digest, after uint64
	dataType      uint64
}

const (
	// pairFrames is the number of frames in a pipe. With several frames, the sender and the
	// receiver can work at the same time.
	pairFrames = 4
	// frameBytes is the size of a frame's data. Several frames fit into the second-level cache.
	frameBytes       = 32 << 10
	frameHeaderBytes = 7 * 8
)

func dataBytes(ranks int) int64 {
	return int64(ranks)*2*stageBytes + int64(ranks*ranks)*int64(unsafe.Sizeof(pair{}))
}

// pointer converts a device address to a pointer. The memory must be outside the Go heap, or
// Call.Keep must keep it reachable.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

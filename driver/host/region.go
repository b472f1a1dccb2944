package host

import (
	"unsafe"

	"symmem/internal/control/shm"
	"symmem/internal/reduce"
)

// The data of a group lies in its control region, behind what joins the ranks: staging for each
// rank, which only its owner writes, and a pipe for each pair. Memory that is never touched costs
// nothing.
const (
	// lineStride is how far apart lines lie that different ranks write: processors fetch lines in
	// pairs.
	lineStride = 128
	// maxRanks bounds the size of a group.
	maxRanks = shm.MaxRanks
	// stageBytes is the size of one of a rank's two staging buffers: large enough to amortise a
	// step, small enough to stay in the second-level cache.
	stageBytes = 512 << 10
)

// One reduction reads the buffers of all ranks of a group.
var _ [reduce.MaxSources - maxRanks]struct{}

// pair is the pipe from one rank to another. The sender writes all of it but taken.
type pair struct {
	// posted counts the Sends that were called, and taken is the number of the last frame that the
	// receiver has read.
	posted uint64
	_      [lineStride - 8]byte
	taken  uint64
	_      [lineStride - 8]byte
	frames [pairFrames]frame
}

// frame is a part of a message. Frame n of a pipe lies in its place n % pairFrames.
type frame struct {
	// posted is the number of the frame, from 1; it is written last.
	posted uint64
	header frameHeader
	_      [lineStride/2 - 8 - frameHeaderBytes]byte
	data   [frameBytes]byte
	_      [lineStride / 2]byte
}

// frameHeader says which part of which message a frame holds.
type frameHeader struct {
	// tag and number name the message among those of the pair; total is its size in bytes.
	tag, number, total uint64
	// offset is where the frame's bytes lie in the message.
	offset uint64
	// digest stands for the sender's call, after for how many collectives it had called before.
	digest, after uint64
	// dataType is that of the sender's call.
	dataType uint64
}

const (
	// pairFrames is how many frames a pipe holds, so that both ends work at the same time.
	pairFrames = 4
	// frameBytes is the payload of a frame: several frames stay in the second-level cache.
	frameBytes = 32 << 10
	// frameHeaderBytes is the size of a header.
	frameHeaderBytes = 7 * 8
)

// dataBytes is the size of the data of a group.
func dataBytes(ranks int) int64 {
	return int64(ranks)*2*stageBytes + int64(ranks*ranks)*int64(unsafe.Sizeof(pair{}))
}

// pointer turns a device address into a pointer. Device memory is outside the Go heap, or kept
// alive and in place by Call.Keep.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

package shm

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// A group's ranks share a control region, which begins with one block per rank. Unless noted, only
// the rank writes to its block. Padding (_) separates frequently written fields from those that
// other ranks poll.

const (
	// MaxRanks is the maximum number of ranks in a group.
	MaxRanks          = 64
	lineStride        = 128 // bytes of two cache lines, which processors fetch together
	pageBytes         = 4096
	announcementCount = 64      // per rank; a power of two
	chunkBytes        = 8 << 10 // payload of one step of an exchange
	// faultSlots is enough for a report of maximum size and 128 reports of one slot.
	faultSlots = driver.MaxPayload/chunkBytes + 128
)

// block is one rank's part of the control region.
//
// The fields wakeup, lines and status are on different pages, because processors prefetch
// neighboring cache lines of a page. This reduced an all-reduce of 8 bytes from 381 ns to 270 ns.
// The first field must rarely be written, because Go's nil checks load it.
type block struct {
	wakeup    wakeup
	_         [pageBytes - lineStride]byte
	lines     [2]line // for even and odd steps of collectives
	_         [pageBytes - 2*lineStride]byte
	status    status
	_         [pageBytes - lineStride]byte
	announced [announcementCount]announcement
	_         [pageBytes - announcementCount*unsafe.Sizeof(announcement{})]byte
	lanes     [driver.LaneFault][2]slot // all lanes before LaneFault, for even and odd steps
	faultLog  [faultSlots]slot          // reports about failures
	decision  decision
	values    [driver.MaxValueNames]valueSlot // in the order in which the rank first used them
}

// wakeup wakes a rank's sleeping threads. Other ranks read it after every post, so its fields must
// rarely be written.
type wakeup struct {
	word     uint32 // futex of sleeping threads; any rank increments it
	sleeping int32  // number of threads sleeping on word
	failed   uint32 // control.Reason of the rank's failure, or 0
	_        [lineStride - 3*4]byte
}

func (w *wakeup) wake() {
	atomic.AddUint32(&w.word, 1)
	sys.FutexWake(&w.word)
}

// line holds the data that a rank posts in one step of a collective or of a named value.
type line struct {
	step    uint64 // written last, because other ranks wait for it
	digest  uint64 // hash of a call XOR balance, or hash of a value's name
	payload [spin.LinePayload]byte
	balance uint64 // Counts.Balance; in the second cache line
	_       [lineStride - spin.LineBytes - 8]byte
}

// status publishes what a rank is doing. Tickets are the sequence numbers of a group's collectives.
// Times are in nanoseconds of the monotonic clock. Only submitted is written often.
type status struct {
	submitted     uint64 // last ticket that the rank has submitted
	awaitedTicket uint64 // ticket of the collective in which the rank waits, or 0
	exchanges     uint64 // last step posted on driver.LaneControl
	awaitedStep   uint64 // step on driver.LaneControl in which the rank waits, or 0
	operation     uint64 // driver.Operation of awaitedTicket
	since         uint64 // when the wait in the collective or exchange began
	closed        uint64 // 1 if the rank has left the group
	message       uint64 // messageWait of an awaited message, or 0
	messageSince  uint64
	value         uint64 // 1 plus the index in block.values of an awaited value, or 0
	valueSince    uint64
	fetch         uint64 // 1 plus the group rank whose memory is being fetched, or 0
	fetchSince    uint64
	_             [lineStride - 13*8]byte
}

// announcement holds the hash of a call before its collective. ticket is 0 while the rank writes
// digest.
type announcement struct{ ticket, digest uint64 }

// slot holds a chunk of a payload in an exchange, or of a report in faultLog.
type slot struct {
	step         uint64 // step of the lane, or slotIsWritten in faultLog; written last
	payloadBytes uint64 // size of the whole payload or report
	_            [lineStride - 2*8]byte
	data         [chunkBytes]byte
}

// decision holds a rank's proposal for the cause of a failure.
type decision struct {
	// decider, in the first block only, is 1 plus the group rank that proposed first, or 0. Any rank
	// may write it.
	decider uint32
	size    uint64 // of data in bytes
	_       [lineStride - 2*8]byte
	data    [driver.MaxPayload]byte
	_       [pageBytes - lineStride]byte
}

// valueSlot holds a rank's data of a named value.
type valueSlot struct {
	lines [2]line // for even and odd steps
	size  uint64  // of name in bytes; written after name
	name  [driver.MaxValueName]byte
	_     [pageBytes - 2*lineStride - 8 - driver.MaxValueName]byte
}

// blocksSize returns the size of all blocks in whole pages.
func blocksSize(rankCount int) int64 {
	return roundToPages(int64(rankCount) * int64(unsafe.Sizeof(block{})))
}

func roundToPages(bytes int64) int64 {
	pageCount := (bytes + pageBytes - 1) / pageBytes
	return pageCount * pageBytes
}

// blocksIn returns the blocks of a control region that begins at base, by group rank.
func blocksIn(base unsafe.Pointer, rankCount int) []*block {
	blocks := make([]*block, rankCount)
	for i := range blocks {
		offset := uintptr(i) * unsafe.Sizeof(block{})
		blocks[i] = (*block)(unsafe.Add(base, offset))
	}

	return blocks
}

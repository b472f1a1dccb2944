package shm

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// A group's ranks share a control region, which begins with one block per rank. Each rank writes
// only to its own block, except for wakeup.word and decision.decider. Padding (_) separates
// frequently written fields from those that other ranks poll.

const (
	lineStride = 128 // processors fetch cache lines of 64 bytes in pairs
	// MaxRanks is the maximum number of ranks in a group.
	MaxRanks   = 64
	pageBytes  = 4096
	chunkBytes = 8 << 10 // payload of one step of an exchange
	// faultSlots is the number of slots in a log of reports: enough for one of maximum size and
	// 128 small ones.
	faultSlots = driver.MaxPayload/chunkBytes + 128
)

// block is one rank's part of the control region.
//
// The fields wakeup, lines and status are on different pages, because processors prefetch
// neighboring cache lines of a page. On one page, an all-reduce of 8 bytes took 381 ns instead of
// 270 ns. lines is not first, because Go's nil checks load the first cache line of a block.
type block struct {
	wakeup    wakeup
	_         [pageBytes - lineStride]byte
	lines     [2]line // for even and odd steps of collectives
	_         [pageBytes - 2*lineStride]byte
	status    status
	_         [pageBytes - lineStride]byte
	announced [announcementCount]announcement
	_         [pageBytes - announcementCount*unsafe.Sizeof(announcement{})]byte
	lanes     [driver.LaneFault][2]slot // by driver.Lane, for even and odd steps of exchanges
	fault     [faultSlots]slot          // log of reports about failures
	decision  decision
	values    [driver.MaxValueNames]valueSlot
}

// wakeup is for a rank's sleeping threads. Other ranks read it after every post, so it contains
// only fields that are rarely written.
type wakeup struct {
	word     uint32 // number of calls of wake; the futex on which threads sleep
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
	digest  uint64 // hash of the call XORed with balance, or hash of the value's name
	payload [spin.LinePayload]byte
	balance uint64 // Counts.Balance; in the second cache line, because it is rarely read
	_       [lineStride - spin.LineBytes - 8]byte
}

// status publishes what a rank is doing. Tickets are the sequence numbers of a group's collectives.
// Times are in nanoseconds of the monotonic clock. Only submitted is written often.
type status struct {
	submitted    uint64 // last ticket that this rank has submitted
	inCollective uint64 // ticket for which the rank waits, or 0
	exchanges    uint64 // last step posted on driver.LaneControl
	inExchange   uint64 // step for which the rank waits on driver.LaneControl, or 0
	operation    uint64 // driver.Operation of inCollective
	since        uint64 // beginning of the wait in the collective or exchange
	closed       uint64 // not 0 if the rank has left the group
	message      uint64 // awaited message (see messageWait), or 0
	messageSince uint64
	value        uint64 // 1 plus the index of the awaited valueSlot, or 0
	valueSince   uint64
	fetch        uint64 // 1 plus the group rank whose memory is being fetched, or 0
	fetchSince   uint64
	_            [lineStride - 13*8]byte
}

// slot holds a chunk of a payload in an exchange, or of a report in a log.
type slot struct {
	step         uint64 // step of the exchange, or writtenStep in a log; written last
	payloadBytes uint64 // of the whole payload
	_            [lineStride - 2*8]byte
	data         [chunkBytes]byte
}

// decision is a rank's proposal for the cause of a failure.
type decision struct {
	decider uint32 // 1 plus the group rank that proposed first, or 0; only in the first block
	size    uint64 // of data in bytes
	_       [lineStride - 2*8]byte
	data    [driver.MaxPayload]byte
	_       [pageBytes - lineStride]byte
}

// valueSlot holds one of a rank's named values, in the order of their first use.
type valueSlot struct {
	lines [2]line // for even and odd steps of the value
	size  uint64  // of name in bytes; written after name
	name  [driver.MaxValueName]byte
	_     [pageBytes - 2*lineStride - 8 - driver.MaxValueName]byte
}

// blocksSize returns the size of all blocks in whole pages.
func blocksSize(ranks int) int64 {
	return roundToPages(int64(ranks) * int64(unsafe.Sizeof(block{})))
}

func roundToPages(bytes int64) int64 {
	pageCount := (bytes + pageBytes - 1) / pageBytes
	return pageCount * pageBytes
}

// blocksIn returns the blocks of a control region that begins at base, by group rank.
func blocksIn(base unsafe.Pointer, ranks int) []*block {
	blocks := make([]*block, ranks)
	for i := range blocks {
		offset := uintptr(i) * unsafe.Sizeof(block{})
		blocks[i] = (*block)(unsafe.Add(base, offset))
	}

	return blocks
}

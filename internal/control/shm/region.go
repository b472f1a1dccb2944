package shm

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// A group's control region is memory that all its ranks share. It holds a block for every rank,
// followed by the data of the backend. Only the rank that owns a block writes to it, except for
// wakeup.word and the first block's decider. All ranks must agree on these sizes and layouts.
const (
	// lineStride is the distance of lines in bytes: processors fetch cache lines in pairs.
	lineStride = 128
	// MaxRanks is the maximum number of ranks in a group.
	MaxRanks  = 64
	pageBytes = 4096 // size of a memory page
	// chunkBytes is the payload size of one step of an exchange.
	chunkBytes = 8 << 10
	// faultSlots is the number of slots in a rank's log of fault reports. A report of the maximum
	// size and many small ones fit into the log.
	faultSlots = driver.MaxPayload/chunkBytes + 128
)

// line holds the data that a rank posts in one step of a collective or of a named value.
type line struct {
	step uint64 // number of the step; written last
	// digest is the hash of the call, XORed with balance. For a named value, it is the hash of the
	// name.
	digest  uint64
	payload [spin.LinePayload]byte
	// balance is Counts.Balance, in a cache line that is read only if a balance is not 0 (see
	// steps.compareCallsAndBalances).
	balance uint64
	_       [lineStride - spin.LineBytes - 8]byte
}

// wakeup serves to wake the threads of a rank that sleep. Other ranks read it after every post, so
// no part of its cache line is written often.
type wakeup struct {
	word     uint32 // number of calls of wake, and the futex on which the threads sleep
	sleeping int32  // number of threads sleeping on word
	failed   uint32 // control.Reason of the rank's failure, or 0
	_        [lineStride - 12]byte
}

// wake wakes all sleeping threads of the rank.
func (w *wakeup) wake() {
	atomic.AddUint32(&w.word, 1)
	sys.FutexWake(&w.word)
}

// status shows other ranks what a rank is doing. Only submitted is written often. A ticket is the
// number of a collective in the group. Times are in nanoseconds of the machine's monotonic clock.
type status struct {
	submitted    uint64 // last ticket that the rank has submitted
	inCollective uint64 // ticket of the collective in which the rank waits, or 0
	exchanges    uint64 // last step that the rank has posted on driver.LaneControl
	inExchange   uint64 // step on this lane in which the rank waits, or 0
	operation    uint64 // driver.Operation of the collective in which the rank waits
	since        uint64 // time when the wait in the collective or exchange began
	closed       uint64 // not 0 if the rank has left
	message      uint64 // awaited message (see messageWait), or 0
	messageSince uint64 // time when the wait for the message began
	value        uint64 // 1 plus the number of the awaited valueSlot, or 0
	valueSince   uint64 // time when the wait for the value began
	fetch        uint64 // 1 plus the group rank whose memory the rank has requested, or 0
	fetchSince   uint64 // time of this request
	_            [lineStride - 104]byte
}

// valueSlot holds a rank's values under one name (see driver.Values), in alternating lines. Ranks
// fill slots in the order of their first use of names.
type valueSlot struct {
	lines [2]line
	size  uint64 // of name in bytes; 0 until name has been written
	name  [driver.MaxValueName]byte
	_     [pageBytes - 2*lineStride - 8 - driver.MaxValueName]byte
}

// slot holds a part of the payload that a rank sends in an exchange.
type slot struct {
	step         uint64 // step of the exchange, or 1 in the log of fault reports; written last
	payloadBytes uint64 // size of the whole payload
	_            [lineStride - 16]byte
	data         [chunkBytes]byte
}

// decision is a rank's proposal for the cause of a failure. The owner writes size and data once.
type decision struct {
	decider uint32 // 1 plus the group rank of the first proposal, or 0; only in the first block
	size    uint64 // of data in bytes
	_       [lineStride - 16]byte
	data    [driver.MaxPayload]byte
	_       [pageBytes - lineStride]byte
}

// block is one rank's part of the control region.
//
// Lines, wakeup and status are on separate pages. Processors prefetch neighboring cache lines of a
// page, and peers poll lines and read wakeup after each post. On one page, an all-reduce of 8 bytes
// took 381 ns instead of 270 ns.
//
// wakeup comes first. Before an access to a distant field, Go's nil check loads the first cache
// line of the block, which must be one that peers do not poll.
type block struct {
	wakeup    wakeup
	_         [pageBytes - lineStride]byte
	lines     [2]line
	_         [pageBytes - 2*lineStride]byte
	status    status
	_         [pageBytes - lineStride]byte
	announced [announcementCount]announcement
	_         [pageBytes - announcementCount*16]byte
	lanes     [driver.LaneFault][2]slot
	fault     [faultSlots]slot
	decision  decision
	values    [driver.MaxValueNames]valueSlot
}

// blocksSize returns the size of the blocks of all ranks in bytes.
func blocksSize(ranks int) int64 {
	return roundToPages(int64(ranks) * int64(unsafe.Sizeof(block{})))
}

// roundToPages rounds a size up to a multiple of pageBytes, which is a power of two.
func roundToPages(bytes int64) int64 { return (bytes + pageBytes - 1) &^ (pageBytes - 1) }

// blocksIn returns the blocks of all ranks in a control region, by group rank.
func blocksIn(base unsafe.Pointer, ranks int) []*block {
	blocks := make([]*block, ranks)
	for i := range blocks {
		blocks[i] = (*block)(unsafe.Add(base, uintptr(i)*unsafe.Sizeof(block{})))
	}

	return blocks
}

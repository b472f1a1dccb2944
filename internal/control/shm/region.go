package shm

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// The ranks of a group share memory, the control region. For a group of two ranks, it contains the
// block of rank 0, the block of rank 1, and then the data of the backend.
//
// A rank writes only to its own block, and reads the blocks of the other ranks. For example, it
// posts its part of a collective in one of its lines, and shows in status where it waits. Two
// fields are exceptions, which all ranks write: wakeup.word, and decision.decider of the first
// block.
//
// All ranks must agree on the layout. The fields called _ separate the other fields, so that data
// which one rank writes often is not next to data which other ranks read often.

const (
	// lineStride is the distance between lines in bytes. It is the size of two cache lines, because
	// processors fetch these in pairs.
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

// block is one rank's part of the control region.
//
// The fields lines, wakeup and status are on separate pages, because processors prefetch
// neighboring cache lines of a page. With all of them on one page, an all-reduce of 8 bytes took
// 381 ns instead of 270 ns: other ranks poll the lines, and read wakeup after each post.
//
// wakeup comes first. Before an access to a distant field, Go's nil check loads the first cache
// line of the block, which must be one that other ranks do not poll.
type block struct {
	wakeup    wakeup
	_         [pageBytes - lineStride]byte
	lines     [2]line // used in turn, by the steps of collectives
	_         [pageBytes - 2*lineStride]byte
	status    status
	_         [pageBytes - lineStride]byte
	announced [announcementCount]announcement
	_         [pageBytes - announcementCount*16]byte
	lanes     [driver.LaneFault][2]slot // by driver.Lane; used in turn, by the steps of exchanges
	fault     [faultSlots]slot          // the log of fault reports
	decision  decision
	values    [driver.MaxValueNames]valueSlot
}

// wakeup serves to wake the sleeping threads of a rank. Other ranks read it after every post, so
// no part of its cache line is written often.
type wakeup struct {
	word     uint32 // number of calls of wake, and the futex on which the threads sleep
	sleeping int32  // number of threads sleeping on word
	failed   uint32 // control.Reason of the rank's failure, or 0
	_        [lineStride - 3*4]byte
}

// wake wakes all sleeping threads of the rank.
func (w *wakeup) wake() {
	atomic.AddUint32(&w.word, 1)
	sys.FutexWake(&w.word)
}

// line holds the data that a rank posts in one step of a collective, or in one step of a named
// value (see driver.Values).
type line struct {
	step uint64 // number of the step; written last, because other ranks wait for it
	// digest is a hash with which ranks check that their lines belong together. For a collective, it
	// is the hash of the call, XORed with balance. For a named value, it is the hash of the name.
	digest  uint64
	payload [spin.LinePayload]byte
	// balance is Counts.Balance. Other ranks read it only if digests differ or their own balance is
	// not 0, so it is in another cache line than the fields above.
	balance uint64
	_       [lineStride - spin.LineBytes - 8]byte
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
	closed       uint64 // not 0 if the rank has left the group
	message      uint64 // awaited message (see messageWait), or 0
	messageSince uint64 // time when the wait for the message began
	value        uint64 // 1 plus the number of the awaited valueSlot, or 0
	valueSince   uint64 // time when the wait for the value began
	fetch        uint64 // 1 plus the group rank whose memory the rank has requested, or 0
	fetchSince   uint64 // time of this request
	_            [lineStride - 13*8]byte
}

// slot holds a part of the payload that a rank sends in an exchange.
type slot struct {
	step         uint64 // step of the exchange, or 1 in the log of fault reports; written last
	payloadBytes uint64 // size of the whole payload
	_            [lineStride - 2*8]byte
	data         [chunkBytes]byte
}

// decision is a rank's proposal for the cause of a failure. The rank writes size and data once.
type decision struct {
	decider uint32 // 1 plus the group rank of the first proposal, or 0; only in the first block
	size    uint64 // of data in bytes
	_       [lineStride - 2*8]byte
	data    [driver.MaxPayload]byte
	_       [pageBytes - lineStride]byte
}

// valueSlot holds a rank's named value. Ranks fill slots in the order of their first use of names.
type valueSlot struct {
	lines [2]line // used in turn, by the steps of the value
	size  uint64  // of name in bytes; 0 until name has been written
	name  [driver.MaxValueName]byte
	_     [pageBytes - 2*lineStride - 8 - driver.MaxValueName]byte
}

// blocksSize returns the size of the blocks of all ranks in bytes, rounded up to whole pages.
func blocksSize(ranks int) int64 {
	return roundToPages(int64(ranks) * int64(unsafe.Sizeof(block{})))
}

// roundToPages rounds a size up to a multiple of pageBytes, which is a power of two.
func roundToPages(bytes int64) int64 { return (bytes + pageBytes - 1) &^ (pageBytes - 1) }

// blocksIn returns the blocks of all ranks in a control region, by group rank. base is the address
// of the region.
func blocksIn(base unsafe.Pointer, ranks int) []*block {
	blocks := make([]*block, ranks)
	for i := range blocks {
		offset := uintptr(i) * unsafe.Sizeof(block{})
		blocks[i] = (*block)(unsafe.Add(base, offset))
	}

	return blocks
}

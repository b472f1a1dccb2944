package shm

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// A group's control region holds a block for every rank, followed by the data of the backend. Only
// the rank that owns a block writes to it, except for wakeup.word and the first block's decider.
const (
	// lineStride is the distance of lines in bytes: processors fetch cache lines in pairs.
	lineStride = 128
	// MaxRanks is the maximum number of ranks in a group.
	MaxRanks  = 64
	pageBytes = 4096
	// chunkBytes is the payload size of one step of an exchange.
	chunkBytes = 8 << 10
	// faultSlots is the number of slots in a rank's log of fault reports.
	faultSlots = driver.MaxPayload/chunkBytes + 128
)

// line holds the data that a rank posts in one step of a collective or of a named value.
type line struct {
	step uint64
	// digest is the hash of the call, XORed with balance.
	digest  uint64
	payload [spin.LinePayload]byte
	// balance is Counts.Balance, in a cache line that is read only if a balance is not 0 (see
	// steps.compareBalances).
	balance uint64
	_       [lineStride - spin.LineBytes - 8]byte
}

// wakeup serves to wake the threads of a rank that sleep. Other ranks read it after every post, so
// no part of its cache line is written often.
type wakeup struct {
	word     uint32 // futex on which the threads sleep
	sleeping int32  // number of threads sleeping on word
	failed   uint32 // control.Reason
	_        [lineStride - 12]byte
}

func (w *wakeup) wake() {
	atomic.AddUint32(&w.word, 1)
	sys.FutexWake(&w.word)
}

// status shows other ranks what a rank is doing. Only submitted is written often.
type status struct {
	submitted uint64 // last ticket that the rank has submitted
	// inCollective is the ticket (number) of the collective in which the rank waits, or 0.
	inCollective uint64
	// exchanges is the last step that the rank has posted on driver.LaneControl. inExchange is the
	// step on this lane in which the rank waits, or 0.
	exchanges, inExchange uint64
	operation             uint64 // driver.Operation of the collective
	// since is the time when the wait began, in nanoseconds of the machine's monotonic clock.
	since  uint64
	closed uint64 // not 0 if the rank has left
	// message encodes the awaited message (see messageWait), or is 0.
	message, messageSince uint64
	// value is 1 plus the number of the awaited valueSlot, or 0.
	value, valueSince uint64
	// fetch is 1 plus the group rank whose memory this rank has requested, or 0.
	fetch, fetchSince uint64
	_                 [lineStride - 104]byte
}

// valueSlot holds a rank's values under one name (see driver.Values), in alternating lines. Ranks
// fill slots in the order of their first use of names.
type valueSlot struct {
	lines [2]line
	// size is 0 until name has been written.
	size uint64
	name [driver.MaxValueName]byte
	_    [pageBytes - 2*lineStride - 8 - driver.MaxValueName]byte
}

// slot holds a part of a payload. step is written last.
type slot struct {
	step         uint64
	payloadBytes uint64
	_            [lineStride - 16]byte
	data         [chunkBytes]byte
}

// decision is a rank's proposal for the cause of a failure. The owner writes size and data once.
type decision struct {
	decider uint32 // 1 plus the group rank of the first proposal; only in the first block
	size    uint64
	_       [lineStride - 16]byte
	data    [driver.MaxPayload]byte
	_       [pageBytes - lineStride]byte
}

// block is one rank's part of the control region.
//
// Lines, wakeup and status are on separate pages, because processors prefetch neighboring cache
// lines of a page, and peers poll lines and wakeup. On one page, an all-reduce of 8 bytes took 381
// ns instead of 270 ns.
//
// Go's nil check before an access to a distant field loads wakeup, which must be a cache line that
// peers do not poll.
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

func roundToPages(bytes int64) int64 { return (bytes + pageBytes - 1) &^ (pageBytes - 1) }

func blocksIn(base unsafe.Pointer, ranks int) []*block {
	blocks := make([]*block, ranks)
	for i := range blocks {
		blocks[i] = (*block)(unsafe.Add(base, uintptr(i)*unsafe.Sizeof(block{})))
	}
	return blocks
}

package shm

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// A group's control region is one shared file. It holds a block for every rank and then the
// backend's data. Only the owner of a block writes to it, with two exceptions: other ranks
// increment the futex word, and any rank can set the first block's decider. Lines are 128 bytes
// apart, because processors fetch cache lines in pairs. Most pages of a block are never used or
// allocated.
const (
	lineStride = 128
	MaxRanks   = 64
	pageBytes  = 4096
	// chunkBytes is the number of payload bytes that an exchange transfers in one step.
	chunkBytes = 8 << 10
	// faultSlots is the number of slots in a rank's log of reports about failures.
	faultSlots = driver.MaxPayload/chunkBytes + 128
)

// line holds the data that a rank posts in one step.
type line struct {
	step uint64
	// digest is the digest of the rank's call, XORed with balance.
	digest  uint64
	payload [spin.LinePayload]byte
	// balance is the rank's Counts.Balance. It has a separate cache line, which ranks read only if
	// a balance is not 0 (see steps.compareBalances).
	balance uint64
	_       [lineStride - spin.LineBytes - 8]byte
}

// wakeup lets other ranks wake a rank. They read it after every post, so nothing in its cache line
// is written often.
type wakeup struct {
	word     uint32 // futex
	sleeping int32  // number of the rank's threads that are sleeping on word
	failed   uint32 // control.Reason why the rank has failed, or 0
	_        [lineStride - 12]byte
}

func (w *wakeup) wake() {
	atomic.AddUint32(&w.word, 1)
	sys.FutexWake(&w.word)
}

// status publishes what a rank is doing. Only submitted is written often.
type status struct {
	submitted uint64
	// inCollective is the ticket (number) of the collective in which the rank waits, or 0.
	inCollective uint64
	// exchanges is the last step that the rank has posted on driver.LaneControl. inExchange is the
	// same step while the rank waits in it, and 0 otherwise.
	exchanges, inExchange uint64
	operation             uint64
	// since is when the wait began, in nanoseconds of the machine's monotonic clock.
	since  uint64
	closed uint64
	// message encodes the message that the rank waits for (see messageWait), or is 0.
	message, messageSince uint64
	// value is 1 plus the number of the valueSlot in which the rank waits, or 0.
	value, valueSince uint64
	_                 [lineStride - 88]byte
}

// valueSlot holds a rank's values under one name (for Group.Agree and related calls). A rank
// alternates between its two lines, as in collectives. Each rank fills its slots in the order in
// which it first uses names, and other ranks search for the name.
type valueSlot struct {
	lines [2]line
	// size is the length of name, or 0 until name has been written.
	size uint64
	name [driver.MaxValueName]byte
	_    [pageBytes - 2*lineStride - 8 - driver.MaxValueName]byte
}

// slot holds one chunk of a payload.
type slot struct {
	step         uint64
	payloadBytes uint64
	_            [lineStride - 16]byte
	data         [chunkBytes]byte
}

// decision is a rank's proposal for the cause of the group's failure. Only that rank writes size
// and data, once.
type decision struct {
	decider uint32 // 1 plus the group rank of the first proposal; used only in the first block
	size    uint64
	_       [lineStride - 16]byte
	data    [driver.MaxPayload]byte
	_       [pageBytes - lineStride]byte
}

// block is one rank's part of the control region.
//
// Lines, wakeup and status are on separate pages, because peers poll lines and wakeup, and
// processors prefetch neighbouring cache lines of a page. On one page, an all-reduce of 8 bytes
// took 381 ns instead of 270 ns.
//
// wakeup comes first, because Go's nil check loads the first word of the struct before a field that
// is a page away. Peers must not poll that cache line.
type block struct {
	wakeup    wakeup
	_         [pageBytes - lineStride]byte
	lines     [2]line
	_         [pageBytes - 2*lineStride]byte
	status    status
	_         [pageBytes - lineStride]byte
	announced [announcements]announcement
	_         [pageBytes - announcements*16]byte
	lanes     [driver.LaneFault][2]slot
	fault     [faultSlots]slot
	decision  decision
	values    [driver.MaxValueNames]valueSlot
}

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

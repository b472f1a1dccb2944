package shm

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// A group's control region is one shared file with a block for every rank. Only the owner of a
// block writes to it, with two exceptions: other ranks increment the futex word to wake the
// owner, and any rank may set the first block's decider. Lines are 128 bytes apart, because
// processors fetch cache lines in pairs. Blocks are large, but most of a block is never touched
// and thus never allocated. A backend's data, if any, follows the blocks.
const (
	lineStride = 128
	MaxRanks   = 64
	// pageBytes is the size of the smallest page.
	pageBytes = 4096
	// chunkBytes is the number of bytes that a lane transfers in one step.
	chunkBytes = 8 << 10
	// faultSlots is the number of slots in a rank's fault log, which is enough for the largest
	// payload and a hundred small ones.
	faultSlots = driver.MaxPayload/chunkBytes + 128
)

// line holds the data that a rank posts in one step.
type line struct {
	step uint64
	// digest is the digest of the rank's call, XORed with balance.
	digest  uint64
	payload [spin.LinePayload]byte
	// balance is the rank's message balance. It has a separate cache line, which no rank reads
	// unless some rank's balance is not 0 (see steps.compareBalances).
	balance uint64
	_       [lineStride - spin.LineBytes - 8]byte
}

// wakeup lets other ranks wake a rank. Because they read it after every post, its cache line holds
// nothing that is written often.
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

// status publishes what a rank is doing. Other ranks include it in their error messages and use it
// to detect ranks that wait for each other in different calls. All fields except submitted are
// written only by slow waits.
type status struct {
	// submitted is the number of collectives that the rank has launched.
	submitted uint64
	// inCollective is the ticket of the collective in which the rank is waiting, or 0.
	inCollective uint64
	// exchanges is the last step that the rank has posted on the control lane. inExchange has the
	// same value while the rank is waiting in that step, and is 0 at all other times.
	exchanges, inExchange uint64
	// operation is the operation of the collective with ticket inCollective.
	operation uint64
	// since is the time at which the wait began, in nanoseconds of the machine's monotonic clock.
	since uint64
	// closed is 1 once the rank has left the group.
	closed uint64
	// message encodes the message that the rank is waiting for (see messageWait), or is 0.
	// messageSince is the time at which that wait began.
	message, messageSince uint64
	// value is 1 plus the number of the valueSlot in which the rank is waiting, or 0. valueSince
	// is the time at which that wait began.
	value, valueSince uint64
	_                 [lineStride - 88]byte
}

// valueSlot holds a rank's values under one name (for Group.Agree and related calls). A rank
// alternates between its two lines, as in collectives. Each rank allocates its slots in the
// order in which it first uses the names. Other ranks find a slot by its name, so slot numbers
// need not be exchanged.
type valueSlot struct {
	lines [2]line
	// size is the length of name, or 0 until name has been written.
	size uint64
	name [driver.MaxValueName]byte
	_    [pageBytes - 2*lineStride - 8 - driver.MaxValueName]byte
}

type slot struct {
	step  uint64
	total uint64
	_     [lineStride - 16]byte
	data  [chunkBytes]byte
}

// decision is a rank's proposal for the cause of the group's failure. Only that rank writes
// size and data, and only once. The group has reached a decision when decider in the first
// block is not 0.
type decision struct {
	decider uint32 // 1 plus the group rank whose proposal is the decision; first block only
	size    uint64
	_       [lineStride - 16]byte
	data    [driver.MaxPayload]byte
	_       [pageBytes - lineStride]byte
}

// block is one rank's part of the control region.
//
// Lines, wakeup and status are on separate pages. Peers constantly poll lines and read wakeup,
// and their processors also prefetch neighbouring cache lines, though never across pages. If
// status were in the next cache line, this processor would repeatedly lose that line, and a
// store to status would delay the post that follows. An all-reduce of 8 bytes took 381 ns with
// lines, wakeup and status on one page, and about 270 ns with separate pages.
//
// wakeup comes first because of Go's nil check: before the code accesses a field that is a page
// away, it loads the first word of the struct. The cache line of that word must not be one that
// peers poll.
type block struct {
	wakeup wakeup
	_      [pageBytes - lineStride]byte
	lines  [2]line
	_      [pageBytes - 2*lineStride]byte
	status status
	_      [pageBytes - lineStride]byte
	// announced holds the announcements for recent tickets. Only planes use it.
	announced [announcements]announcement
	_         [pageBytes - announcements*16]byte
	lanes     [driver.LaneFault][2]slot
	fault     [faultSlots]slot
	decision  decision
	values    [driver.MaxValueNames]valueSlot
}

// blocksBytes returns the size of a group's blocks, rounded up to whole pages.
func blocksBytes(ranks int) int64 { return pages(int64(ranks) * int64(unsafe.Sizeof(block{}))) }

func pages(bytes int64) int64 { return (bytes + pageBytes - 1) &^ (pageBytes - 1) }

func blocksIn(base unsafe.Pointer, ranks int) []*block {
	blocks := make([]*block, ranks)
	for i := range blocks {
		blocks[i] = (*block)(unsafe.Add(base, uintptr(i)*unsafe.Sizeof(block{})))
	}
	return blocks
}

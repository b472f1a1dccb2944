package shm

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// The control region of a group is one shared file with a block for every rank. Only the owner
// writes to its block, except for its futex word, which the others increment to wake it. Lines are
// 128 bytes apart, since processors fetch lines in pairs. Memory that is never touched costs
// nothing, so blocks are large. The blocks are followed by the data of a backend that has asked
// for some.
const (
	lineStride = 128
	// MaxRanks bounds the size of a group.
	MaxRanks = 64
	// pageBytes is the size of the smallest page.
	pageBytes = 4096
	// chunkBytes is what a lane carries in one step.
	chunkBytes = 8 << 10
	// faultSlots is how many slots a rank's log of faults has: room for the largest payload and
	// for a hundred small ones.
	faultSlots = driver.MaxPayload/chunkBytes + 128
)

// line is what a rank posts in one step.
type line struct {
	step uint64
	// digest stands for the rank's call, and is combined with balance by exclusive or.
	digest  uint64
	payload [spin.LinePayload]byte
	// balance is the rank's balance of messages. It lies in a line of its own, which nobody reads
	// as long as no rank has messages: see steps.compareBalances.
	balance uint64
	_       [lineStride - spin.LineBytes - 8]byte
}

// wakeup is how the others wake a rank: word is a futex, sleeping counts the threads of the rank
// that sleep on it. failed is the control.Reason for which the rank has failed, or 0. Other ranks
// read this after every post, so it shares its line with nothing that is written often.
type wakeup struct {
	word     uint32
	sleeping int32
	failed   uint32
	_        [lineStride - 12]byte
}

// wake wakes the threads that sleep.
func (w *wakeup) wake() {
	atomic.AddUint32(&w.word, 1)
	sys.FutexWake(&w.word)
}

// status says what a rank is doing. The others need it for their error messages, and to find out
// that two ranks wait for each other in different calls. Only slow waits write it, except for
// submitted.
type status struct {
	// submitted counts the collectives that the rank has launched.
	submitted uint64
	// inCollective is the number of the collective that the rank waits in, or 0.
	inCollective uint64
	// exchanges is the last step that the rank has posted on the control lane; inExchange is that
	// step while the rank waits in it, or 0.
	exchanges, inExchange uint64
	// operation is the operation of the collective inCollective.
	operation uint64
	// since is when the wait began, in nanoseconds of the machine's monotonic clock.
	since uint64
	// closed is 1 once the rank has left the group.
	closed uint64
	// message is what the rank waits for in a message, as messageWait packs it, or 0; messageSince
	// is when that wait began.
	message, messageSince uint64
	// value is 1 more than the slot of the name under which the rank waits, or 0; valueSince is
	// when that wait began.
	value, valueSince uint64
	_                 [lineStride - 88]byte
}

// valueSlot is where a rank posts its values under one name (Group.Agree and the like): two lines,
// used in turn as those of collectives are. Each rank numbers its own slots, in the order in which
// it first uses the names, and others find a name by its text. So ranks need no exchange about
// names.
type valueSlot struct {
	lines [2]line
	// size is the length of name, 0 until that is written.
	size uint64
	name [driver.MaxValueName]byte
	_    [pageBytes - 2*lineStride - 8 - driver.MaxValueName]byte
}

// slot is one step of a lane.
type slot struct {
	step  uint64
	total uint64
	_     [lineStride - 16]byte
	data  [chunkBytes]byte
}

// block is one rank's part of the control region.
//
// Lines, wakeup and status are on pages of their own. Peers poll lines and read wakeup all the
// time, and processors prefetch neighbouring lines, but never across pages. A status in the next
// line would leave this processor's cache again and again, and a store to it would delay the post
// that follows. An all-reduce of 8 bytes took 381 ns with all of them on one page, and about 270
// with a page each.
//
// wakeup is first because of Go's check for nil: before it accesses a field that is a page away, it
// loads the first word of what the pointer points to. If that were a line, it would be one that a
// peer is about to write.
type block struct {
	wakeup wakeup
	_      [pageBytes - lineStride]byte
	lines  [2]line
	_      [pageBytes - 2*lineStride]byte
	status status
	_      [pageBytes - lineStride]byte
	// announced holds the latest tickets of a rank whose data moves elsewhere.
	announced [announcements]announcement
	_         [pageBytes - announcements*16]byte
	lanes     [driver.LaneFault][2]slot
	fault     [faultSlots]slot
	values    [driver.MaxValueNames]valueSlot
}

// blocksBytes is the size of the blocks of a group, in whole pages.
func blocksBytes(ranks int) int64 { return pages(int64(ranks) * int64(unsafe.Sizeof(block{}))) }

// pages rounds a size up to whole pages.
func pages(bytes int64) int64 { return (bytes + pageBytes - 1) &^ (pageBytes - 1) }

// blocksIn returns the blocks of all ranks in a mapped control region.
func blocksIn(base unsafe.Pointer, ranks int) []*block {
	blocks := make([]*block, ranks)
	for i := range blocks {
		blocks[i] = (*block)(unsafe.Add(base, uintptr(i)*unsafe.Sizeof(block{})))
	}
	return blocks
}

package binding

import (
	"encoding/binary"
	"slices"
)

// A checked pad is memory on each rank of a group, through which kernels signal each other. For its
// third signal to rank 2, rank 1 writes a padWord with epoch 3 to its slot on the pad of rank 2. If
// the kernel there finds another word, or none in time, it writes a report to the pads of all
// ranks. An arrival is a signal to all ranks.
//
// The kernel generator, python/src/symmem/_device, has the same layout. Offsets are in bytes.
const (
	padRanks    = 32 // maximum
	padChannels = 1024

	// The header.
	padFailed    = 0   // uint32: the padFailure of a rank, or 0
	padNumber    = 4   // uint32: the number of the pad in the group
	padOwnRank   = 8   // uint32: the rank to which this memory belongs
	padGroupSize = 12  // uint32: number of ranks
	padTimeout   = 16  // uint64: maximum wait of a kernel, in nanoseconds
	padStop      = 32  // uint64: address of the word by which the host stops kernels
	padPeers     = 256 // a uint64 for each rank: the address of its memory

	padReports     = 512 // a report for each rank: its first failed wait
	padReportBytes = 64

	// A counter consists of two uint32: how often this rank has arrived or signalled, and how often
	// it has waited.
	padCounterBytes = 8
	padArrivals     = 4096                                      // a counter for each channel
	padSignals      = padArrivals + padCounterBytes*padChannels // a counter for each channel and rank

	padSlots    = padSignals + padCounterBytes*padRanks*padChannels // padRows rows for each channel
	padRowBytes = padWordBytes * padRanks                           // a slot for each rank
	padBytes    = padSlots + padRows*padRowBytes*padChannels        // size of the pad
)

// Rows of slots of a channel.
const (
	padArrivalRow = 0 // and 1 for odd epochs, because a rank can be one arrival ahead
	padSignalRow  = 2
	padRows       = 3
)

// padSlot returns the offset of a rank's slot.
func padSlot(channel, row, rank int) int {
	return padSlots + (padRows*channel+row)*padRowBytes + padWordBytes*rank
}

// MaxPadSites limits the numbers of call sites, which have 12 bits in a padWord.
const MaxPadSites = 1 << 12

const padWordBytes = 8

// padWord is a signal or an arrival in a slot. The upper half is the epoch, its sequence number.
// The lower half is the tag: the pad's number (8 bits), the channel and the call site (12 bits
// each). Before a sender overwrites values for the receiver, it can replace the tag by 0.
type padWord uint64

func (w padWord) epoch() uint32 { return uint32(w >> 32) }
func (w padWord) tag() uint32   { return uint32(w) }
func (w padWord) channel() int  { return int(w >> 12 & 0xFFF) }
func (w padWord) site() int     { return int(w % MaxPadSites) }

// padFailure is the reason why a wait has failed.
type padFailure uint32

const (
	padTimedOut    padFailure = 1
	_              padFailure = 2 // the wait found a word that it did not expect
	padPeerFailed  padFailure = 3 // another rank failed first
	padBadArgument padFailure = 4 // the kernel passed an invalid channel, site or peer
	padOverwritten padFailure = 5 // the peer wrote its next values too early
	padStopped     padFailure = 6 // the host has stopped the group's kernels
)

// padReport is the report of a rank's first failed wait, with ranks of the group.
type padReport struct {
	rank          int // the rank that waited
	failure       padFailure
	peer          int     // the rank for which it waited
	want, found   padWord // the expected and the actual word in the peer's slot
	channel, site int     // of the wait
	row           int     // padArrivalRow or padSignalRow
}

func (r *padReport) isArrival() bool { return r.row == padArrivalRow }

// padMemory is a copy of a pad or, except for absent and pending, of its first bytes.
type padMemory []byte

func (m padMemory) uint32(offset int) uint32 { return binary.NativeEndian.Uint32(m[offset:]) }

func (m padMemory) word(offset int) padWord {
	return padWord(binary.NativeEndian.Uint64(m[offset:]))
}

// reports returns the valid reports of a group with the given number of ranks.
func (m padMemory) reports(ranks int) []padReport {
	var valid []padReport
	for rank := range ranks {
		r := m.report(rank)
		hasFailed := r.failure != 0
		if hasFailed && r.isValid(ranks) {
			valid = append(valid, r)
		}
	}

	return valid
}

// report returns a rank's report. Its failure is 0 if no wait has failed.
func (m padMemory) report(rank int) padReport {
	offset := padReports + rank*padReportBytes
	return padReport{
		rank:    rank,
		failure: padFailure(m.uint32(offset)),
		peer:    int(m.uint32(offset + 4)),
		want:    m.word(offset + 8),
		found:   m.word(offset + 16),
		channel: int(m.uint32(offset + 24)),
		site:    int(m.uint32(offset + 28)),
		row:     int(m.uint32(offset + 32)),
	}
}

// isValid reports whether peer and channel are valid indexes. A faulty kernel may have overwritten
// the report.
func (r *padReport) isValid(ranks int) bool {
	if r.failure == padBadArgument {
		return true // the peer and the channel are only printed
	}

	return r.peer < ranks && r.channel < padChannels
}

// absent returns the ranks whose arrivals did not end the wait of report r, which is this rank's.
func (m padMemory) absent(r *padReport, ranks int) []int {
	var absentRanks []int
	row := int(r.want.epoch() % 2) // see padArrivalRow
	for rank := range ranks {
		hasArrived := m.word(padSlot(r.channel, row, rank)) == r.want
		if !hasArrived {
			absentRanks = append(absentRanks, rank)
		}
	}

	return absentRanks
}

// padSignal is a signal or an arrival for which this rank has not waited.
type padSignal struct {
	source        int // rank of the group that sent it
	isArrival     bool
	channel, site int
}

// pending returns the signals and arrivals for which this rank has not waited.
func (m padMemory) pending(ranks int) []padSignal {
	var all []padSignal
	for channel := range padChannels {
		if !m.isUsed(channel) {
			continue // saves time, because most channels are unused
		}

		for rank := range ranks {
			for row := range padRows {
				w := m.word(padSlot(channel, row, rank))
				// The epoch may have wrapped around.
				isLater := int32(w.epoch()-m.waitCount(channel, row, rank)) > 0
				if w.tag() != 0 && isLater {
					all = append(all, padSignal{
						source: rank, isArrival: row != padSignalRow, channel: channel, site: w.site(),
					})
				}
			}
		}
	}

	return all
}

func (m padMemory) isUsed(channel int) bool {
	const firstRank = 0
	begin := padSlot(channel, 0, firstRank)
	end := padSlot(channel+1, 0, firstRank)
	isNonZero := func(b byte) bool { return b != 0 }
	return slices.ContainsFunc(m[begin:end], isNonZero)
}

// waitCount returns how often this rank has waited for arrivals, or for signals of the given rank,
// depending on the row.
func (m padMemory) waitCount(channel, row, rank int) uint32 {
	counter := padArrivals + padCounterBytes*channel
	if row == padSignalRow {
		counter = padSignals + padCounterBytes*(padRanks*channel+rank)
	}

	return m.uint32(counter + 4) // the second half
}

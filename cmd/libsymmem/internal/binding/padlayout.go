package binding

import (
	"encoding/binary"
	"slices"
)

// The layout of a checked pad, as described in python/src/symmem/_device/layout.py. Kernels access
// it by instructions that python/src/symmem/_device/ptx.py generates. All offsets are in bytes.
const (
	padRanks    = 32 // maximum number of ranks
	padChannels = 1024

	// The header.
	padFailed    = 0   // uint32: the first padFailure of any rank, or 0
	padNumber    = 4   // uint32: the pad's number, which the tag of each signal contains
	padOwnRank   = 8   // uint32: rank of the group to which this pad belongs
	padGroupSize = 12  // uint32: number of ranks
	padTimeout   = 16  // uint64: maximum wait of a kernel, in nanoseconds
	padStop      = 32  // uint64: address of the word by which the host stops kernels
	padPeers     = 256 // a uint64 for each rank: the address of its pad

	padReports     = 512 // a report for each rank: its first failed wait
	padReportBytes = 64

	// Each counter consists of two uint32: how often this rank has signalled (or arrived), and how
	// often it has waited.
	padArrivals = 4096                                // a counter for each channel
	padSignals  = padArrivals + 8*padChannels         // a counter for each channel and rank
	padSlots    = padSignals + 8*padRanks*padChannels // three rows for each channel
	padRowBytes = 8 * padRanks                        // a padWord for each rank
	padBytes    = padSlots + 3*padRowBytes*padChannels
)

// padFailure is the reason why a wait on a pad has failed.
type padFailure uint32

const (
	padTimedOut    padFailure = 1
	padPeerFailed  padFailure = 3 // another rank failed first
	padBadArgument padFailure = 4 // an invalid channel, site or peer
	padOverwritten padFailure = 5 // by the peer's next values
	padStopped     padFailure = 6 // the host has stopped the group's kernels
)

// A channel has three rows of slots, and each rank writes one slot of a row. Arrivals alternate
// between the first two rows. Signals use the third.
const (
	padArrivalRow = 0
	padSignalRow  = 2
)

// MaxPadSites is the number of call sites that a signal can name: those that fit in 12 bits.
const MaxPadSites = 1 << 12

// padWord is the value that a rank writes to a slot to signal or to arrive. The high half is the
// epoch, which counts the signals or arrivals of the rank on the channel. The low half is the tag:
// the pad's number (8 bits), the channel and the call site (12 bits each). A tag of 0 marks a slot
// whose rank has begun to write its next values.
type padWord uint64

func (w padWord) epoch() uint32 { return uint32(w >> 32) }
func (w padWord) tag() uint32   { return uint32(w) }
func (w padWord) channel() int  { return int(w >> 12 & 0xFFF) }
func (w padWord) site() int     { return int(w % MaxPadSites) }

// padReport is the report of a rank's first failed wait. Ranks are those of the group.
type padReport struct {
	rank          int // the rank that waited
	failure       padFailure
	peer          int     // the rank for which it waited
	want, found   padWord // the word that it expected in the peer's slot, and the word that was there
	channel, site int     // of the wait
	row           int     // padArrivalRow or padSignalRow
}

func (r *padReport) isArrival() bool { return r.row == padArrivalRow }

// padSignal is a signal or an arrival for which this rank has not waited.
type padSignal struct {
	source        int // rank of the group that sent it
	isArrival     bool
	channel, site int
}

// padMemory is a copy of the first bytes of a pad, at least up to padArrivals. Methods pending and
// absent need the whole pad.
type padMemory []byte

func (m padMemory) uint32(offset int) uint32 { return binary.NativeEndian.Uint32(m[offset:]) }

func (m padMemory) word(offset int) padWord {
	return padWord(binary.NativeEndian.Uint64(m[offset:]))
}

// reports returns the valid reports of failed waits in a group with this number of ranks. A faulty
// kernel of any rank can overwrite a report, so reports checks the values that are used as indexes.
func (m padMemory) reports(ranks int) []padReport {
	var valid []padReport
	for rank := range ranks {
		offset := padReports + rank*padReportBytes
		r := padReport{
			rank: rank, failure: padFailure(m.uint32(offset)), peer: int(m.uint32(offset + 4)),
			want: m.word(offset + 8), found: m.word(offset + 16),
			channel: int(m.uint32(offset + 24)), site: int(m.uint32(offset + 28)),
			row: int(m.uint32(offset + 32)),
		}
		hasFailed := r.failure != 0
		isWithinPad := r.peer < ranks && r.channel < padChannels
		// A bad argument can be outside the pad. It is only printed.
		if hasFailed && (isWithinPad || r.failure == padBadArgument) {
			valid = append(valid, r)
		}
	}

	return valid
}

// padRow returns the offset of a row of slots.
func padRow(channel, row int) int { return padSlots + (3*channel+row)*padRowBytes }

// absent returns the ranks that have not arrived, although this rank has waited for them. r is the
// report of this wait.
func (m padMemory) absent(r *padReport, ranks int) []int {
	var absentRanks []int
	row := int(r.want.epoch() % 2) // arrivals alternate between two rows
	slots := padRow(r.channel, row)
	for rank := range ranks {
		if m.word(slots+8*rank) != r.want {
			absentRanks = append(absentRanks, rank)
		}
	}

	return absentRanks
}

// pending returns the signals and arrivals for which this rank has not waited.
func (m padMemory) pending(ranks int) []padSignal {
	var all []padSignal
	isNonZero := func(b byte) bool { return b != 0 }
	for channel := range padChannels {
		begin := padRow(channel, 0)
		rows := m[begin : begin+3*padRowBytes]
		if !slices.ContainsFunc(rows, isNonZero) {
			continue // most channels are unused
		}

		// The second half of each counter says how often this rank has waited.
		arrivalWaits := m.uint32(padArrivals + 8*channel + 4)
		for rank := range ranks {
			signalWaits := m.uint32(padSignals + 8*(channel*padRanks+rank) + 4)
			waitsByRow := [3]uint32{arrivalWaits, arrivalWaits, signalWaits}
			for row, waits := range waitsByRow {
				w := m.word(padRow(channel, row) + 8*rank)
				isLater := int32(w.epoch()-waits) > 0 // right even after an overflow of the epoch
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

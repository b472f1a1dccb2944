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

	padFailed  = 0   // the first padFailure of any rank, or 0
	padNumber  = 4   // followed by the rank, the number of ranks and the timeout
	padStop    = 32  // address of the word by which the host stops kernels
	padPeers   = 256 // for each rank, the address of its pad
	padReports = 512 // for each rank, the report of its first failed wait

	padReportBytes = 64
	padArrivals    = 4096
	padSignals     = padArrivals + 8*padChannels
	padSlots       = padSignals + 8*padRanks*padChannels
	padRowBytes    = 8 * padRanks
	padBytes       = padSlots + 3*padRowBytes*padChannels
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

// MaxPadSites is the number of call sites that a signal can name.
const MaxPadSites = 1 << 12

// padWord is the value that a rank writes to a slot to signal or to arrive. The high half is the
// epoch, which counts the signals or arrivals of the rank on the channel. The low half is the tag:
// the pad's number (8 bits), the channel and the call site (12 bits each). A tag is never 0.
type padWord uint64

func (w padWord) epoch() uint32 { return uint32(w >> 32) }
func (w padWord) tag() uint32   { return uint32(w) }
func (w padWord) channel() int  { return int(w >> 12 & 0xFFF) }
func (w padWord) site() int     { return int(w % MaxPadSites) }

// padReport is the report of a rank's first failed wait. Ranks are those of the group.
type padReport struct {
	rank          int
	failure       padFailure
	peer          int // the rank for which the wait failed
	want, found   padWord
	channel, site int
	row           int // padArrivalRow or padSignalRow
}

func (r *padReport) isArrival() bool { return r.row == padArrivalRow }

// padSignal is a signal or an arrival for which this rank has not waited.
type padSignal struct {
	source        int // rank of the group
	isArrival     bool
	channel, site int
}

// padMemory is a copy of the first bytes of a pad. Methods pending and absent need the whole pad.
type padMemory []byte

func (m padMemory) uint32(offset int) uint32 { return binary.NativeEndian.Uint32(m[offset:]) }

func (m padMemory) word(offset int) padWord {
	return padWord(binary.NativeEndian.Uint64(m[offset:]))
}

// reports returns the valid reports of failed waits. Others are possible, because kernels of all
// ranks can write to the memory.
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
		isWithinPad := r.peer < ranks && r.channel < padChannels
		isFailure := r.failure != 0
		if r.failure == padBadArgument || (isFailure && isWithinPad) {
			valid = append(valid, r)
		}
	}
	return valid
}

func padRow(channel, row int) int { return padSlots + (3*channel+row)*padRowBytes }

// absent returns the ranks whose arrivals this rank's failed wait r has not found.
func (m padMemory) absent(r *padReport, ranks int) []int {
	var absentRanks []int
	row := padRow(r.channel, int(r.want.epoch()%2))
	for rank := range ranks {
		if m.word(row+8*rank) != r.want {
			absentRanks = append(absentRanks, rank)
		}
	}
	return absentRanks
}

// pending returns the signals and arrivals for which this rank has not waited.
func (m padMemory) pending(ranks int) []padSignal {
	var all []padSignal
	for channel := range padChannels {
		begin := padRow(channel, 0)
		if !slices.ContainsFunc(m[begin:begin+3*padRowBytes], func(b byte) bool { return b != 0 }) {
			continue
		}
		// The second number of each pair counts how often this rank has waited.
		arrivalWaits := m.uint32(padArrivals + 8*channel + 4)
		for rank := range ranks {
			signalWaits := m.uint32(padSignals + 8*(channel*padRanks+rank) + 4)
			for row, waits := range [3]uint32{arrivalWaits, arrivalWaits, signalWaits} {
				w := m.word(padRow(channel, row) + 8*rank)
				isLater := int32(w.epoch()-waits) > 0 // epochs can overflow
				if w.tag() != 0 && isLater {
					all = append(all, padSignal{rank, row != padSignalRow, channel, w.site()})
				}
			}
		}
	}
	return all
}

package binding

import (
	"encoding/binary"
	"slices"
)

// The layout of a checked pad, as described in python/src/symmem/_device/layout.py. Kernels access
// it by instructions that python/src/symmem/_device/ptx.py generates. All offsets are in bytes.
const (
	padRanks    = 32
	padChannels = 1024

	padFailed  = 0
	padNumber  = 4 // followed by the rank, the size and the timeout
	padStop    = 32
	padPeers   = 256
	padReports = 512

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
	padBadArgument padFailure = 4
	padOverwritten padFailure = 5
	padStopped     padFailure = 6 // the host has stopped the group's kernels
)

// padArrivalRow is the first of a channel's two rows of slots for arrivals. padSignalRow is its row
// for signals.
const (
	padArrivalRow = 0
	padSignalRow  = 2
)

// MaxPadSites is the number of call sites that a signal can name.
const MaxPadSites = 1 << 12

// padWord is a signal: a count (epoch), the pad's number, a channel and a call site.
type padWord uint64

func (w padWord) epoch() uint32 { return uint32(w >> 32) }
func (w padWord) tag() uint32   { return uint32(w) }
func (w padWord) channel() int  { return int(w >> 12 & 0xFFF) }
func (w padWord) site() int     { return int(w % MaxPadSites) }

// padReport is the report of a rank's first failed wait.
type padReport struct {
	rank          int
	failure       padFailure
	peer          int
	want, found   padWord
	channel, site int
	row           int
}

func (r *padReport) isArrival() bool { return r.row == padArrivalRow }

// padSignal is a signal that this rank has not waited for.
type padSignal struct {
	source        int
	isArrival     bool
	channel, site int
}

// padMemory is a copy of the first bytes of a pad. Methods pending and absent need the whole pad.
type padMemory []byte

func (m padMemory) uint32(at int) uint32 { return binary.NativeEndian.Uint32(m[at:]) }
func (m padMemory) word(at int) padWord  { return padWord(binary.NativeEndian.Uint64(m[at:])) }

// reports omits invalid reports, because kernels of all ranks can write to the memory.
func (m padMemory) reports(ranks int) []padReport {
	var found []padReport
	for rank := range ranks {
		at := padReports + rank*padReportBytes
		r := padReport{
			rank: rank, failure: padFailure(m.uint32(at)), peer: int(m.uint32(at + 4)),
			want: m.word(at + 8), found: m.word(at + 16),
			channel: int(m.uint32(at + 24)), site: int(m.uint32(at + 28)),
			row: int(m.uint32(at + 32)),
		}
		isWithinPad := r.peer < ranks && r.channel < padChannels
		if r.failure == padBadArgument || r.failure != 0 && isWithinPad {
			found = append(found, r)
		}
	}
	return found
}

func padRow(channel, row int) int { return padSlots + (3*channel+row)*padRowBytes }

// absent returns the ranks whose arrivals this rank's failed wait r has not found.
func (m padMemory) absent(r *padReport, ranks int) []int {
	var found []int
	row := padRow(r.channel, int(r.want.epoch()%2))
	for rank := range ranks {
		if m.word(row+8*rank) != r.want {
			found = append(found, rank)
		}
	}
	return found
}

// pending returns the signals that this rank has not waited for.
func (m padMemory) pending(ranks int) []padSignal {
	var found []padSignal
	for channel := range padChannels {
		begin := padRow(channel, 0)
		if !slices.ContainsFunc(m[begin:begin+3*padRowBytes], func(b byte) bool { return b != 0 }) {
			continue
		}
		waits := m.uint32(padArrivals + 8*channel + 4)
		for rank := range ranks {
			taken := m.uint32(padSignals + 8*(channel*padRanks+rank) + 4)
			for row, seen := range [3]uint32{waits, waits, taken} {
				w := m.word(padRow(channel, row) + 8*rank)
				if w.tag() != 0 && int32(w.epoch()-seen) > 0 {
					found = append(found, padSignal{rank, row != padSignalRow, channel, w.site()})
				}
			}
		}
	}
	return found
}

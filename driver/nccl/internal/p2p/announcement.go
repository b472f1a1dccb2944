package p2p

import (
	"math"

	"symmem/driver"
)

type address struct {
	source, tag int
	number      uint64
}

// slotKey identifies a slot or a segment of a peer.
type slotKey struct {
	source int
	number uint64
}

// announcement is the header of a message that a sender has announced.
type announcement struct {
	header
	source int
	// previous is the previous message in the same slot, or nil if a Recv has accepted it.
	previous *announcement
	accepted bool // whether a Recv has accepted the message
}

func (a *announcement) address() address { return address{a.source, int(a.tag), a.number} }

// ownsFlags reports whether the slot's flags belong to this message rather than to an earlier one.
func (a *announcement) ownsFlags() bool { return a.previous == nil || a.previous.accepted }

// valid reports whether a correct peer could have sent the header. The segment's size is checked
// once the segment has been mapped.
func (a *announcement) valid() bool {
	return a.tag <= driver.MaxTag && a.number > 0 && a.slot < Slots &&
		a.segment <= math.MaxUint32 && a.size <= math.MaxInt64 &&
		(a.bytes == 0 || a.segment > 0 && a.offset <= a.size && a.bytes <= a.size-a.offset)
}

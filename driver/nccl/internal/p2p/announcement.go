package p2p

import (
	"math"

	"symmem/driver"
)

type address struct {
	source, tag int
	number      uint64
}

// slotKey identifies a message slot or a staging segment of a peer.
type slotKey struct {
	source int
	number uint64
}

// announcement is a message that a sender has announced.
type announcement struct {
	header
	source int
	// previous is the previous message in the same slot. It is nil once a Recv has accepted this
	// message.
	previous *announcement
	accepted bool // whether a Recv has accepted the message
}

func (a *announcement) address() address { return address{a.source, int(a.tag), a.number} }

// ownsFlags reports whether the slot's flags describe this message rather than an earlier message
// in the same slot.
func (a *announcement) ownsFlags() bool { return a.previous == nil || a.previous.accepted }

// valid reports whether a correct peer could have written the header. accept compares size with the
// mapped segment.
func (a *announcement) valid() bool {
	return a.tag <= driver.MaxTag && a.number > 0 && a.slot < Slots &&
		a.segment <= math.MaxUint32 && a.size <= math.MaxInt64 &&
		(a.bytes == 0 || a.segment > 0 && a.offset <= a.size && a.bytes <= a.size-a.offset)
}

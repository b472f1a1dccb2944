package p2p

import (
	"math"

	"symmem/driver"
)

type messageKey struct {
	source, tag int
	number      uint64
}

// slotKey identifies a slot (see flags) or a staging segment of a peer.
type slotKey struct {
	source int
	number uint64
}

// announcement is a message that a sender has announced in this rank's mailbox.
type announcement struct {
	header
	source int
	// previousInSlot is nil once a Recv has accepted this message.
	previousInSlot *announcement
	isAccepted     bool // a Recv has accepted the message
}

func (a *announcement) key() messageKey { return messageKey{a.source, int(a.tag), a.number} }

// ownsFlags reports whether the slot's flags describe this message, not an earlier message in the
// slot.
func (a *announcement) ownsFlags() bool {
	return a.previousInSlot == nil || a.previousInSlot.isAccepted
}

// isValid reports whether a correct peer could have written the header.
func (a *announcement) isValid() bool {
	return a.tag <= driver.MaxTag && a.number > 0 && a.slot < Slots &&
		a.segment <= math.MaxUint32 && a.size <= math.MaxInt64 &&
		(a.bytes == 0 || a.segment > 0 && a.offset <= a.size && a.bytes <= a.size-a.offset)
}

package p2p

import (
	"math"

	"symmem/driver"
)

// address identifies a message.
type address struct {
	source, tag int
	number      uint64
}

// slotKey identifies a slot, or a segment, of a peer.
type slotKey struct {
	source int
	number uint64
}

// announcement is the header of a message, as received from its sender.
type announcement struct {
	header
	source int
	// before is the previous message in the same slot, if it has yet to be given to a Recv.
	before  *announcement
	handled bool // the message was given to a Recv
}

func (a *announcement) address() address { return address{a.source, int(a.tag), a.number} }

// next reports whether the flags of the slot belong to this message, not to an earlier one.
func (a *announcement) next() bool { return a.before == nil || a.before.handled }

// valid reports whether a correct peer could have sent the header. Its segment is compared with the
// mapped one later, once that is mapped.
func (a *announcement) valid() bool {
	return a.tag <= driver.MaxTag && a.number > 0 && a.slot < Slots &&
		a.segment <= math.MaxUint32 && a.size <= math.MaxInt64 &&
		(a.bytes == 0 || a.segment > 0 && a.offset <= a.size && a.bytes <= a.size-a.offset)
}

package p2p

import (
	"math"

	"symmem/driver"
)

// address names a message.
type address struct {
	source, tag int
	number      uint64
}

// slotKey is a slot, or a segment, of a peer.
type slotKey struct {
	source int
	number uint64
}

// announcement is a message whose header has come from its sender.
type announcement struct {
	header
	source int
	// before is the message that has the same slot before this one, or nil.
	before  *announcement
	handled bool
}

func (l *announcement) address() address { return address{l.source, int(l.tag), l.number} }

// next reports whether the flags of the slot are those of its message.
func (l *announcement) next() bool { return l.before == nil || l.before.handled }

// valid reports whether a peer may have announced a message. Its segment is compared with the
// mapped one later, once that is mapped.
func (l *announcement) valid() bool {
	return l.tag <= driver.MaxTag && l.number > 0 && l.slot < Slots &&
		l.segment <= math.MaxUint32 && l.size <= math.MaxInt64 &&
		(l.bytes == 0 || l.segment > 0 && l.offset <= l.size && l.bytes <= l.size-l.offset)
}

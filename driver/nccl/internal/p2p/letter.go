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

// spot is a place, or a segment, of a peer.
type spot struct {
	source int
	number uint64
}

// letter is a message that this rank was told of.
type letter struct {
	header
	source int
	// before is the message that has the same place before this one, or nil.
	before  *letter
	handled bool
}

func (l *letter) address() address { return address{l.source, int(l.tag), l.number} }

// next reports whether the marks of the letter's place are those of its message.
func (l *letter) next() bool { return l.before == nil || l.before.handled }

// possible reports whether a peer may have told of a message. What it says of its segment is
// compared with what is mapped, once that is.
func (l *letter) possible() bool {
	return l.tag <= driver.MaxTag && l.number > 0 && l.place < Places &&
		l.segment <= math.MaxUint32 && l.size <= math.MaxInt64 &&
		(l.bytes == 0 || l.segment > 0 && l.offset <= l.size && l.bytes <= l.size-l.offset)
}

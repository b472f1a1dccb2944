package ledger

import "fmt"

// Kind says what happened to a block or a segment.
type Kind uint8

// The kinds of events. The values go over the wire and never change their meaning.
const (
	// KindSegment: a segment was mapped at the next offset of the arena.
	KindSegment Kind = iota + 1
	// KindAlloc: a block was given to a caller.
	KindAlloc
	// KindFree: a caller gave a block back, and it can be taken again at once.
	KindFree
	// KindReturn: a block whose free was deferred or parked came back.
	KindReturn
	// KindPark: a caller gave a block back that a graph holds.
	KindPark
	// KindDefer: a block that other streams may still use was given back, by its caller or by the
	// last graph that held it.
	KindDefer
	// KindTrim: a segment left the pool.
	KindTrim
	// KindReserve: memory was made up front.
	KindReserve
	// KindNote: the caller put a number of its own into the history.
	KindNote

	kindEnd
)

var kindNames = [kindEnd]string{
	KindSegment: "segment",
	KindAlloc:   "alloc",
	KindFree:    "free",
	KindReturn:  "return",
	KindPark:    "parked free",
	KindDefer:   "deferred free",
	KindTrim:    "trim",
	KindReserve: "reserve",
	KindNote:    "note",
}

// String returns the word for k, as it stands in reports.
func (k Kind) String() string {
	if !k.valid() {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

func (k Kind) valid() bool { return k > 0 && k < kindEnd }

// places reports whether an event of kind k gives a place, rather than names one given before.
func (k Kind) places() bool {
	return k == KindSegment || k == KindAlloc || k == KindReserve
}

// Event is one decision about placement. It holds no pointer and has a fixed size, so that a ring
// of events costs the garbage collector nothing.
type Event struct {
	// Offset is the distance in bytes from the start of the segment.
	Offset int64
	// Size is what the block or segment occupies, in bytes.
	Size int64
	// Requested is what the caller asked for, in bytes.
	Requested int64
	// Stream numbers the stream on whose behalf it happened.
	Stream uint32
	// Segment is the ordinal of the segment, or -1 where the event concerns none.
	Segment int32
	// Site is the index of the call site in a [Sites] table, 0 if unknown. It is no part of the
	// digest: ranks may reach the same placement from different lines.
	Site uint32
	// Kind says what happened.
	Kind Kind
}

// String gives every field that the digest covers, so that different events read differently. What
// an event does not have, as a free has no request and a reservation no segment, is left out:
//
//	alloc 1048576 B (stream 0) -> segment 2 offset 0x100000
//	free 1048576 B (asked 1000000 B, stream 0) at segment 2 offset 0x100000
//	note 4096 of kind 7
func (e Event) String() string {
	if e.Kind == KindNote && e.Segment == -1 && e.Offset == 0 && e.Stream == 0 {
		return fmt.Sprintf("note %d of kind %d", e.Size, e.Requested)
	}
	arrow := "at"
	if e.Kind.places() {
		arrow = "->"
	}
	asked, unsaid := "", int64(0)
	if e.Kind.places() {
		unsaid = e.Size
	}
	if e.Requested != unsaid {
		asked = fmt.Sprintf("asked %d B, ", e.Requested)
	}
	place := fmt.Sprintf(" %s segment %d offset %#x", arrow, e.Segment, e.Offset)
	if e.Segment == -1 && e.Offset == 0 {
		place = ""
	}
	return fmt.Sprintf("%s %d B (%sstream %d)%s", e.Kind, e.Size, asked, e.Stream, place)
}

// frees reports whether an event of kind k gives a block back.
func (k Kind) frees() bool { return k == KindFree || k == KindPark || k == KindDefer }

// SameFree reports whether e and o give the same block back, however it was left.
func (e Event) SameFree(o Event) bool {
	return e.Kind.frees() && o.Kind.frees() && e.Segment == o.Segment &&
		e.Offset == o.Offset && e.Size == o.Size
}

// SameRequest reports whether e and o ask for the same thing, wherever it was placed.
func (e Event) SameRequest(o Event) bool {
	return e.Kind == o.Kind && e.Stream == o.Stream &&
		e.Requested == o.Requested && e.Size == o.Size
}

package ledger

import "fmt"

// Kind identifies the kind of an event.
type Kind uint8

// The kinds of events. Their values are part of the wire format and must not change.
const (
	// KindSegment means that a segment was mapped at the next offset of the arena.
	KindSegment Kind = iota + 1
	// KindAlloc means that a block was allocated.
	KindAlloc
	// KindFree means that a block was freed and can be reused at once.
	KindFree
	// KindReturn means that a block whose free was deferred or parked became free.
	KindReturn
	// KindPark means that a block was freed while a graph holds it.
	KindPark
	// KindDefer means that a block that other streams may still use was freed, by its caller or by
	// the last graph that held it.
	KindDefer
	// KindTrim means that a segment was removed from the pool.
	KindTrim
	// KindReserve means that memory was reserved.
	KindReserve
	// KindNote means that the caller recorded a number in the history.
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

// String returns the name of k that reports use.
func (k Kind) String() string {
	if !k.valid() {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

func (k Kind) valid() bool { return k > 0 && k < kindEnd }

// places reports whether an event of kind k assigns a place, rather than referring to one.
func (k Kind) places() bool {
	return k == KindSegment || k == KindAlloc || k == KindReserve
}

// Event records one decision about placement. It contains no pointers and has a fixed size, so that
// the garbage collector need not scan a ring of events.
type Event struct {
	// Offset is the distance in bytes from the start of the segment.
	Offset int64
	// Size is the size that the block or segment occupies, in bytes.
	Size int64
	// Requested is the size that the caller requested, in bytes.
	Requested int64
	// Stream is the number of the stream for which it happened.
	Stream uint32
	// Segment is the ordinal of the segment, or -1 if the event concerns none.
	Segment int32
	// Site is the index of the call site in a [Sites] table, 0 if unknown. It is not part of the
	// digest: ranks may reach the same placement from different lines.
	Site uint32
	// Kind is the kind of the event.
	Kind Kind
}

// String formats every field that the digest covers, so that different events have different texts.
// Fields that do not apply are omitted, such as the request of a free or the segment of a
// reservation:
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

// frees reports whether an event of kind k frees a block.
func (k Kind) frees() bool { return k == KindFree || k == KindPark || k == KindDefer }

// SameFree reports whether e and o free the same block, whether or not it was parked or deferred.
func (e Event) SameFree(o Event) bool {
	return e.Kind.frees() && o.Kind.frees() && e.Segment == o.Segment &&
		e.Offset == o.Offset && e.Size == o.Size
}

// SameRequest reports whether e and o request the same, wherever it was placed.
func (e Event) SameRequest(o Event) bool {
	return e.Kind == o.Kind && e.Stream == o.Stream &&
		e.Requested == o.Requested && e.Size == o.Size
}

package event

// Event describes one action of a rank. Kind determines which fields apply; the others are zero.
type Event struct {
	// Number is the event's number in the pool's history or in the group, from 0. Events of a pool
	// outside its history have the number of the next event in the history.
	Number uint64
	// Group is the id of the group. For an event of a pool, it is the pool's domain or empty.
	Group string
	// Pool is the id of the pool. Each rank numbers its pools without a domain separately.
	Pool uint64
	// Site is the file:line that caused the event, if call sites are recorded. Ranks do not compare
	// sites.
	Site string

	// Offset is in bytes from the start of the segment.
	Offset int64
	// Size is the number of bytes that the block or segment occupies, and Requested the number that
	// the caller asked for.
	Size      int64
	Requested int64
	Stream    uint32
	// Segment is an ordinal, or -1 if there is no segment.
	Segment int32

	Call *Call
	// Operation is the name of a call on a value, such as "Agree".
	Operation string
	// Name is the name of a value, or the id of the group of a registration or scope.
	Name string
	// Value is an integer, a Boolean as 0 or 1, or the bits of a float. For a text or a step, it is
	// part of a digest of the text.
	Value int64
	// Text is the name of a step, the quoted beginning of a text, or the error of a fault.
	Text string
	// Collectives counts the collectives that the rank has launched since its previous step.
	Collectives uint64

	// Rank is a rank of the world.
	Rank int32
	Kind Kind
}

// Same reports whether e and o are equal except for Rank and Site.
func (e Event) Same(o Event) bool {
	if (e.Call == nil) != (o.Call == nil) || e.Call != nil && *e.Call != *o.Call {
		return false
	}
	e.Rank, e.Site, e.Call = o.Rank, o.Site, o.Call
	return e == o
}

// SameFree reports whether e and o free the same block, even in different ways.
func (e *Event) SameFree(o *Event) bool {
	return e.Kind.isFree() && o.Kind.isFree() && e.Segment == o.Segment &&
		e.Offset == o.Offset && e.Size == o.Size
}

// SameRequest reports whether e and o result from the same request, even with different outcomes.
func (e *Event) SameRequest(o *Event) bool {
	return e.Kind == o.Kind && e.Stream == o.Stream &&
		e.Requested == o.Requested && e.Size == o.Size
}

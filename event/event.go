package event

// Event describes one action of a rank. Kind determines which fields apply; the others are zero.
type Event struct {
	// Number is the event's number in the pool's history or in the group, from 0. Other events of a
	// pool have the number of the next event in the history.
	Number uint64
	// Group is the id of the group or of the pool's domain, or empty.
	Group string
	// Pool is an id. Each rank numbers its pools without a domain separately.
	Pool uint64
	// Site is the file:line of the call, if call sites are recorded. Ranks do not compare it.
	Site string

	// Offset is in bytes from the start of the segment.
	Offset int64
	// Size is the size of the block or segment, and Requested is what the caller asked for, in bytes.
	Size      int64
	Requested int64
	Stream    uint32
	// Segment is an ordinal, or -1 if there is no segment.
	Segment int32

	Call *Call
	// Operation is the method of a comparison of values, such as "Agree".
	Operation string
	// Name is the name of a value, or the id of the group of a registration or scope.
	Name string
	// Value is an integer, a Boolean as 0 or 1, the bits of a float, or part of a text's digest.
	Value int64
	// Text is the name of a step, the quoted beginning of a text, or the error of a fault.
	Text string
	// Collectives counts the collectives of the rank since its previous step.
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
